package heartbeat_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/node/heartbeat"
)

// A full disk does not end the heartbeat of a daemon that lives: after it, a restart
// would have the node's pods evicted.
func TestBeatOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatalf("this test mounts a file system and needs root: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	socket := filepath.Join(dir, "berthd.sock")
	if err := heartbeat.Beat(socket, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	for now := time.Hour; now < 40*time.Hour; now += 13 * time.Hour {
		if err := heartbeat.Beat(socket, now); err != nil || !heartbeat.Recent(socket, now+heartbeat.Interval) {
			t.Errorf("after %v: %v", now, err)
		}
	}
	if err := errors.Join(heartbeat.Stop(socket)); err != nil {
		t.Fatal(err)
	}
}

// Nor does one that has space and can hold no more files.
func TestBeatWithoutInodes(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=3"); err != nil { // the folder's own, and two files'
		t.Fatalf("this test mounts a file system and needs root: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	socket := filepath.Join(dir, "berthd.sock")
	if err := heartbeat.Beat(socket, time.Hour); err != nil {
		t.Fatal(err)
	}
	var err error
	for n := 0; err == nil; n++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("there are inodes: %v", err)
	}
	if err := heartbeat.Beat(socket, 14*time.Hour); err != nil || !heartbeat.Recent(socket, 14*time.Hour) {
		t.Error(err)
	}
}
