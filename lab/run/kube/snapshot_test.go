package kube

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"
)

// A control plane starts from the snapshot of an earlier one, and from nothing when
// the snapshot is damaged, which goes.
func TestSnapshot(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	o := Options{CRDs: fstest.MapFS{"things.yaml": {Data: []byte(crd)}}}
	made := func() []string {
		t.Helper()
		snapshots, err := filepath.Glob(filepath.Join(cache, "berth", "control-planes", "*", "member"))
		ok(t, err)
		return snapshots
	}
	first := up(t, o)
	if n := len(made()); !first.restored || n != 1 {
		t.Fatalf("the first control plane was restored: %v, and there are %d snapshots, want one, which it began from", first.restored, n)
	}
	ok(t, first.Stop())

	mine, err := first.snapshot()
	ok(t, err)
	first.CRDs = nil
	if others, err := first.snapshot(); err != nil || others == mine {
		t.Errorf("without the CRDs the snapshot is %s, with them %s, %v: want another", others, mine, err)
	}

	damaged := filepath.Join(made()[0], "snap", "db")
	ok(t, os.WriteFile(damaged, []byte("no database of etcd"), 0o600))
	second := up(t, o)
	if _, err := client(t, second.Config()).Discovery().ServerResourcesForGroupVersion("test.berth.dev/v1"); err != nil {
		t.Errorf("with a damaged snapshot: %v", err)
	}
	ok(t, second.Stop())
	if left := made(); second.restored || len(left) != 0 {
		t.Errorf("with a damaged snapshot the control plane was restored: %v, and it is still there: %q", second.restored, left)
	}

	old := filepath.Join(filepath.Dir(mine), "old")
	ok(t, os.MkdirAll(old, 0o700))
	ok(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*snapshotAge)))
	young := filepath.Join(filepath.Dir(mine), "young")
	ok(t, os.MkdirAll(young, 0o700))
	ok(t, removeOld(filepath.Dir(mine)))
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("an old snapshot stays: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a new snapshot goes: %v", err)
	}
}
