package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// accountsVar is the folder to which a test program's usage is written. It is a variable, since the text of -exec is
	// part of the key of Go's test cache.
	accountsVar = "TESTRUN_ACCOUNTS"
	// outsideVar is the PID namespace of testrun itself. Process accounting is not switched on there, as it may be the
	// machine's.
	outsideVar = "TESTRUN_OUTSIDE"
	// pidNamespace is a link to the PID namespace of the caller.
	pidNamespace = "/proc/self/ns/pid"

	// processesFile has the records of acct(2), and processesError the reason if there are none.
	processesFile  = "acct"
	processesError = "acct.error"

	// grace is the time limit for processes that are being killed because the test program has ended.
	grace = 200 * time.Millisecond
)

// usage is the usage of a test program and its descendants.
type usage struct {
	Package string // import path
	Program string
	PID     int // PID of the process that started the program, the ancestor of all
	Started time.Time
	Wall    float64 // seconds
	CPU     float64 // seconds, user and system
}

// account runs a test program, writes its usage, and returns how it ended. Without accountsVar this process becomes
// the program.
func account(args []string) (syscall.WaitStatus, error) {
	if len(args) == 0 {
		return 0, errors.New("no program is given, expected `account PROGRAM [ARGUMENT...]`")
	}
	dir := os.Getenv(accountsVar)
	if dir == "" {
		return 0, fmt.Errorf("run %s: %w", args[0], syscall.Exec(args[0], args, os.Environ()))
	}
	u := usage{Program: args[0], PID: os.Getpid(), Started: time.Now()}
	var err error
	if u.Package, err = importPath(); err != nil {
		return 0, err
	}
	// Orphans of the program become children of this process, so that their usage is counted.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become a subreaper: %w", err)
	}
	if err := accountProcesses(dir); err != nil {
		return 0, err
	}
	ended, err := runProgram(slices.Insert(slices.Clone(args), 1, logInputs(args)...))
	if err != nil {
		return 0, err
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(unix.RUSAGE_CHILDREN, &used); err != nil {
		return ended, fmt.Errorf("getrusage(2): %w", err)
	}
	u.Wall = time.Since(u.Started).Seconds()
	u.CPU = (time.Duration(used.Utime.Nano()) + time.Duration(used.Stime.Nano())).Seconds()
	data, err := json.Marshal(u)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.json", u.PID)), data, 0o600)
	}
	return ended, err
}

// logInputs is the flag with which a test program reports to Go's cache what it read. With -exec, go test omits the flag
// but still reads the file, beside the program.
func logInputs(args []string) []string {
	given := func(arg string) bool {
		return strings.HasPrefix(arg, "-test.count=") || strings.HasPrefix(arg, "-test.testlogfile=")
	}
	if !strings.HasSuffix(args[0], ".test") || slices.ContainsFunc(args, given) {
		return nil
	}
	return []string{"-test.testlogfile=" + filepath.Join(filepath.Dir(args[0]), "testlog.txt")}
}

// runProgram forwards signals to the program, reaps all children of this process, and returns when the program has ended.
func runProgram(args []string) (syscall.WaitStatus, error) {
	// The kernel kills the program when the thread that started it ends.
	runtime.LockOSThread()
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP} {
		if !signal.Ignored(s) { // the program also ignores it
			signal.Notify(signals, s)
		}
	}
	var env []string
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != accountsVar && name != outsideVar {
			env = append(env, v)
		}
	}
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", args[0], err)
	}
	go func() {
		for s := range signals {
			_ = syscall.Kill(pid, s.(syscall.Signal))
		}
	}()
	var ended syscall.WaitStatus
	for {
		reaped, err := syscall.Wait4(-1, &ended, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return 0, fmt.Errorf("wait for %s: %w", args[0], err)
		}
		if reaped == pid {
			break
		}
	}
	signal.Stop(signals)
	for until := time.Now().Add(grace); ; {
		reaped, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) || err == nil && reaped == 0 && time.Now().After(until) {
			return ended, nil // no child is left, or none ends
		}
		if reaped == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// endAs ends this process in the same way as another one.
func endAs(s syscall.WaitStatus) {
	if !s.Signaled() {
		os.Exit(s.ExitStatus())
	}
	// The Go runtime has handlers of its own, and one core dump is enough.
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	var byDefault [8]uint64 // struct sigaction of the kernel
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s.Signal()), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	_ = syscall.Kill(os.Getpid(), s.Signal())
	time.Sleep(time.Second) // the signal may be delivered to another thread
	os.Exit(128 + int(s.Signal()))
}

// accountProcesses switches process accounting on, once for all packages. It ends with the sandbox's PID namespace.
func accountProcesses(dir string) error {
	processes := filepath.Join(dir, processesFile)
	f, err := os.OpenFile(processes, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Close()
	if namespace, _ := os.Readlink(pidNamespace); err == nil && namespace == os.Getenv(outsideVar) {
		err = errors.New("the tests have no PID namespace of their own")
	}
	if err == nil {
		err = os.NewSyscallError("acct(2)", syscall.Acct(processes))
	}
	if err != nil {
		return os.WriteFile(filepath.Join(dir, processesError), []byte(err.Error()), 0o600)
	}
	return nil
}

// importPath is the import path of the package in the working directory.
func importPath() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for root := dir; ; root = filepath.Dir(root) {
		module, err := modulePath(root)
		if err == nil {
			rel, err := filepath.Rel(root, dir)
			return path.Join(module, filepath.ToSlash(rel)), err
		}
		if !errors.Is(err, os.ErrNotExist) || root == filepath.Dir(root) {
			return "", fmt.Errorf("find the module of %s: %w", dir, err)
		}
	}
}

var moduleLine = regexp.MustCompile(`(?m)^module\s+(\S+)`)

// modulePath is the path of the module whose root is a folder.
func modulePath(root string) (string, error) {
	file := filepath.Join(root, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	m := moduleLine.FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s has no module line", file)
	}
	return string(m[1]), nil
}
