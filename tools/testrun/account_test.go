package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	burnEnv = "TESTRUN_BURN"
	burned  = 300 * time.Millisecond
)

// burn uses CPU time, and then writes its PID to a file.
func burn(done string) int {
	for used := (syscall.Rusage{}); time.Duration(used.Utime.Nano()+used.Stime.Nano()) < burned; {
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
			return 1
		}
	}
	if err := os.WriteFile(done, []byte(fmt.Sprint(os.Getpid())), 0o600); err != nil {
		return 1
	}
	return 0
}

// accounted runs a shell script as a test program, in the package example.com/m/p.
func accounted(t *testing.T, script string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	root, dir := t.TempDir(), t.TempDir()
	folder := filepath.Join(root, "p")
	must(t, os.Mkdir(folder, 0o700))
	must(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("// A module.\nmodule example.com/m\n"), 0o600))
	namespace, err := os.Readlink(pidNamespace)
	must(t, err)
	cmd = exec.Command(os.Args[0], "account", "/bin/sh", "-c", script)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	cmd.Env = append(os.Environ(), accountsVar+"="+dir, outsideVar+"="+namespace)
	return cmd, dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test unless a condition becomes true.
func eventually(t *testing.T, what string, there func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !there(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("timed out after a minute waiting for:", what)
		}
	}
}

func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

func TestAccountEndsLikeProgram(t *testing.T) {
	for _, tt := range []struct {
		name, script, want string
		signal             os.Signal // sent when the file "ready" exists
	}{
		{"success", "exit 0", "exit status 0", nil},
		{"exit code", "exit 7", "exit status 7", nil},
		{"killed", "kill -KILL $$", "signal: killed", nil},
		{"crashed", "kill -SEGV $$", "signal: segmentation fault", nil},
		{"handled signal", `trap "exit 3" TERM; >ready; while :; do sleep 0.01; done`, "exit status 3", syscall.SIGTERM},
		{"stack trace requested", ">ready; exec sleep 1000", "signal: quit", syscall.SIGQUIT},
		{"interrupted", ">ready; exec sleep 1000", "signal: interrupt", syscall.SIGINT},
		{"terminal closed", ">ready; exec sleep 1000", "signal: hangup", syscall.SIGHUP},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd, dir := accounted(t, tt.script)
			must(t, cmd.Start())
			if tt.signal != nil {
				eventually(t, "the program runs", exists(filepath.Join(cmd.Dir, "ready")))
				must(t, cmd.Process.Signal(tt.signal))
			}
			_ = cmd.Wait() // compared below
			if got := cmd.ProcessState.String(); got != tt.want {
				t.Errorf("the process ended with %q, want %q", got, tt.want)
			}
			if u := usageIn(t, dir); u.Package != pkg || u.PID != cmd.Process.Pid || u.Program != "/bin/sh" || u.Wall <= 0 || u.CPU <= 0 {
				t.Errorf("usage = %+v", u)
			}
		})
	}
}

func usageIn(t *testing.T, dir string) (u usage) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	must(t, err)
	if len(files) != 1 {
		t.Fatalf("%d usage files, want 1", len(files))
	}
	must(t, json.Unmarshal([]byte(read(t, files[0])), &u))
	return u
}

// A program whose child starts another and ends waits until that one is reaped.
func TestAccountOfOrphans(t *testing.T) {
	cmd, dir := accounted(t, fmt.Sprintf("(%s=burned setsid %s &); until [ -s burned ]; do sleep 0.01; done; while kill -0 $(cat burned) 2>&-; do sleep 0.01; done", burnEnv, os.Args[0]))
	must(t, cmd.Run())
	if u := usageIn(t, dir); u.CPU < burned.Seconds() {
		t.Errorf("usage = %v CPU-s, want at least the %v of the orphan", u.CPU, burned)
	}
}

// A program leaves a process behind, which the sandbox reports.
func TestAccountDoesNotWaitForOrphans(t *testing.T) {
	cmd, dir := accounted(t, "sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >pid")
	must(t, cmd.Run())
	usageIn(t, dir)
	var pid int
	if _, err := fmt.Sscan(read(t, filepath.Join(cmd.Dir, "pid")), &pid); err != nil {
		t.Fatal(err)
	}
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

func TestProgramEndsWithAccount(t *testing.T) {
	cmd, _ := accounted(t, "echo $$ >ready.new; mv ready.new ready; exec sleep 1000")
	must(t, cmd.Start())
	ready := filepath.Join(cmd.Dir, "ready")
	eventually(t, "the program runs", exists(ready))
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	var pid int
	if _, err := fmt.Sscan(read(t, ready), &pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	eventually(t, "the program has ended", func() bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err != nil || len(line) == 0 // no process, or a zombie
	})
}

// The real go test runs in a sandbox, twice: usage is recorded by package, and Go's cache works despite -exec.
func TestAccountsOfGoTest(t *testing.T) {
	sandbox, err := filepath.Abs("../../hack/sandbox.sh")
	must(t, err)
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example.com/m\n\ngo 1.26\n",
		"a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestA(*testing.T) {}\n",
		"b/b_test.go": `package b

import (
	"os"
	"os/exec"
	"testing"
)

func TestB(t *testing.T) {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := os.Symlink("/bin/sleep", t.TempDir()+"/../"+name); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-c", "./etcd 0; ./etcd 0; (setsid ./kube-apiserver 0 &); sleep 0.1")
	cmd.Dir = t.TempDir() + "/.."
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}
`,
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	t.Chdir(root)
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOWORK", "off")
	self, err := os.Executable()
	must(t, err)
	for run, from := range []string{"0 of 2", "1 of 2"} {
		var out strings.Builder
		report := newReport(&out)
		report.module, report.accounts = "example.com/m", newAccounts(t.TempDir())
		report.budget = &budget{file: "budget.tsv", total: 1000}
		r := &runner{command: []string{sandbox, "go", "test", "-json", "-vet=off", "-exec=" + self + " account"}, report: report}
		must(t, r.all(t.Context(), []group{{packages: []string{"example.com/m/a"}}, {flags: []string{"-count=1"}, packages: []string{"example.com/m/b"}}}, later{}))
		if !report.print(time.Second) || !strings.Contains(out.String(), from+" packages from the cache") {
			t.Fatalf("run %d: want a success with %s packages from the cache\n%s", run, from, &out)
		}
		if why := report.accounts.unknown; len(why) > 0 {
			if !strings.Contains(out.String(), "NOT RUN   1\n  process starts: acct(2): ") {
				t.Errorf("the summary does not report that process starts are unknown:\n%s", &out)
			}
			continue
		}
		starts := report.accounts.used["example.com/m/b"].starts
		if starts == nil || starts.programs["etcd"] != 2 || starts.programs["kube-apiserver"] != 1 {
			t.Errorf("starts = %+v, want 2 of etcd and 1 of kube-apiserver", starts)
		}
		if none := report.accounts.none.programs; none["etcd"]+none["kube-apiserver"] > 0 || none[other] == 0 {
			t.Errorf("starts outside of packages = %v, want go test's only", none)
		}
	}
}
