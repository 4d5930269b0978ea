package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/run/poll"
)

// machine is one with the image of the host.
func machine(t *testing.T) Machine {
	t.Helper()
	image, err := Prepare(t.Context(), func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	return Machine{Image: image, Booted: func(took time.Duration) { t.Logf("booted in %v", took.Round(100*time.Millisecond)) }}
}

// shell is a command.
func shell(script string, out, complaints io.Writer) Command {
	return Command{Argv: []string{"sh", "-c", script}, Env: []string{"GREETING=it's $HOME"}, Dir: "/usr/share", Stdout: out, Stderr: complaints}
}

// exitCode is that of a command, which is wanted to run to its end.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit == nil {
		return 0
	}
	return exit.Code
}

// greeter answers each connection to a loopback port of the host's.
func greeter(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello from the host\n")
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// freeAddr is a loopback port that nobody listens at.
func freeAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestMachine runs one command that uses all features of a machine.
func TestMachine(t *testing.T) {
	t.Parallel()
	m := machine(t)
	shared, unshared := t.TempDir(), filepath.Join(t.TempDir(), "file")
	m.Shared = []string{shared}
	m.Memory, m.CPUs = 1024, 2
	host, offered := greeter(t), freeAddr(t)
	m.Reach = []netip.AddrPort{host}
	m.Offer = map[uint16]netip.AddrPort{8080: offered}

	// The guest goes on when what it wrote first has arrived, and its web server was asked.
	var answer string
	out := &awaited{text: "waiting\n", heard: func() {
		answer = ask(offered)
		_ = os.WriteFile(filepath.Join(shared, "heard"), nil, 0o600)
	}}
	var complaints bytes.Buffer
	err := m.Run(t.Context(), shell(fmt.Sprintf(`
		busybox httpd -p 8080 -h /etc
		echo waiting; until [ -e %[1]s/heard ]; do sleep 0.1; done
		echo "$GREETING, $(pwd), $(nproc) processors, $(id -u)"
		echo written >%[1]s/written; echo lost >%[2]s
		echo complaint >&2; echo another >/dev/stderr
		exec bash -c 'exec 3<>/dev/tcp/%[3]s/%[4]d; cat <&3; (exec 3<>/dev/tcp/%[3]s/1) 2>/dev/null && echo reaches more; sleep 1000 & exit 7'`,
		shared, unshared, HostAddr, host.Port()), out, &complaints))
	if code := exitCode(t, err); code != 7 {
		t.Errorf("the command ended with %d, want 7", code)
	}
	if got, want := out.all.String(), "waiting\nit's $HOME, /usr/share, 2 processors, 0\nhello from the host\n"; got != want {
		t.Errorf("the command printed %q, want %q", got, want)
	}
	if got, want := complaints.String(), "complaint\nanother\n"; got != want {
		t.Errorf("the command complained %q, want %q", got, want)
	}
	if !strings.HasPrefix(answer, "HTTP/1") {
		t.Errorf("the guest's web server answers the host %q", answer)
	}
	if got, err := os.ReadFile(filepath.Join(shared, "written")); string(got) != "written\n" {
		t.Errorf("the shared folder has %q, %v", got, err)
	}
	if _, err := os.Stat(unshared); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the guest wrote to a folder of the host that is not shared: %v", err)
	}
}

// awaited reports once when a text was written.
type awaited struct {
	all   bytes.Buffer
	text  string
	heard func() // nil when it was called
}

func (a *awaited) Write(p []byte) (int, error) {
	n, err := a.all.Write(p)
	if a.heard != nil && strings.Contains(a.all.String(), a.text) {
		a.heard()
		a.heard = nil
	}
	return n, err
}

// ask asks a web server.
func ask(at netip.AddrPort) string {
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Minute))
	_, _ = io.WriteString(c, "GET /hostname HTTP/1.0\r\n\r\n")
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// TestPanic checks the error of a guest whose kernel panics.
func TestPanic(t *testing.T) {
	t.Parallel()
	err := machine(t).Run(t.Context(), shell("echo c >/proc/sysrq-trigger", io.Discard, nil))
	for _, want := range []string{"ended before its command did", "sysrq triggered crash"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// TestEndsByContext checks that a canceled machine leaves nothing behind.
func TestEndsByContext(t *testing.T) {
	m := machine(t)
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, shell("sleep 1000", io.Discard, nil)) }()
	untilProcesses(t, 1)
	enough := errors.New("enough")
	cancel(enough)
	if err := <-ended; !errors.Is(err, enough) {
		t.Errorf("got %v, want the context's cause", err)
	}
	if left := processes(t); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// TestEndsWithCaller kills the process that has started a machine: itself, run again.
func TestEndsWithCaller(t *testing.T) {
	const again = "BERTH_TEST_START_MACHINE"
	if os.Getenv(again) != "" {
		t.Fatal(machine(t).Run(t.Context(), shell("sleep 1000", io.Discard, nil)))
	}
	t.Setenv("TMPDIR", t.TempDir())
	cmd := exec.Command(os.Args[0], "-test.run=^TestEndsWithCaller$")
	cmd.Env = append(os.Environ(), again+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	untilProcesses(t, 1)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	untilProcesses(t, 0)
}

// untilProcesses waits until n processes of QEMU have files below this test's TMPDIR.
func untilProcesses(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for began := time.Now(); len(processes(t)) != n; {
		if err := poll.Pause(ctx, began, poll.Often); err != nil {
			t.Fatalf("there are processes %q, want %d", processes(t), n)
		}
	}
}

func processes(t *testing.T) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		line, _ := os.ReadFile(f) // of one that is gone: nothing
		if bytes.Contains(line, []byte(qemu)) && bytes.Contains(line, []byte(os.Getenv("TMPDIR"))) {
			found = append(found, string(line))
		}
	}
	return found
}
