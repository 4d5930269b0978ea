// Package nstest makes network namespaces for tests.
package nstest

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
)

var made atomic.Int32

// Unique is a name that no other namespace has.
func Unique(role string) string { return fmt.Sprintf("btns-%d-%d-%s", os.Getpid(), made.Add(1), role) }

// New makes a network namespace, which is removed with the test, and returns its path.
func New(t testing.TB, name string) string {
	t.Helper()
	if err := ns.Create(name); err != nil {
		t.Fatalf("this test makes network namespaces and needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(name); err != nil {
			t.Error(err)
		}
	})
	return ns.Path(name)
}

// Within polls until the kernel or another process has made a condition true.
func Within(t testing.TB, what string, ok func() bool) {
	t.Helper()
	look, late := time.NewTicker(2*time.Millisecond), time.After(time.Minute)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
