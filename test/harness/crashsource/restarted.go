package crashsource

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/berthnet/berth/internal/failpoint"
)

// Restarted starts a child with failpoints armed, and another one without failpoints each time one has been killed,
// until the test ends. The returned function counts the deaths. A child that ends otherwise fails the test; its log
// is then printed.
func Restarted(t *testing.T, what any, failpoints string) (deaths func() int) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	launch := func(failpoints string) *exec.Cmd {
		cmd, err := Command(what, log, failpoint.EnvVar+"="+failpoints)
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Error(err)
		}
		return cmd
	}
	var mu sync.Mutex // guards all below
	n, over := 0, false
	cmd := launch(failpoints)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			err := cmd.Wait()
			mu.Lock()
			if over {
				mu.Unlock()
				return
			}
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Errorf("the child ended unexpectedly: %v", err)
			}
			n++
			cmd = launch("")
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		mu.Lock()
		over = true
		_ = cmd.Process.Kill()
		mu.Unlock()
		<-done
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the children's log:\n%s", text)
		}
		_ = log.Close()
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}
