package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A snapshot is etcd's data of a fresh control plane: what the API server makes
// by itself, and the CRDs. Each machine keeps one for each choice of programs, arguments and CRDs in
// its user's cache directory. Certificates and keys are no part of it.

// snapshotAge is how long a snapshot is kept; then it is made anew. A cache has no users to ask.
const snapshotAge = 7 * 24 * time.Hour

// restoredPatience limits a start from a snapshot: etcd may hang on damaged data.
const restoredPatience = time.Minute

// restore copies a snapshot, which it makes if it is missing, to the data of a new control plane. It reports whether
// that succeeded; otherwise a control plane starts from nothing.
func (o Options) restore(ctx context.Context) bool {
	if o.Kubelets { // the API server's endpoints, with leases, are in the data
		return false
	}
	if _, err := os.Stat(o.data()); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	snapshot, err := o.snapshot()
	if err != nil {
		return false
	}
	if _, gone := os.Stat(snapshot); errors.Is(gone, fs.ErrNotExist) {
		err = o.makeSnapshot(ctx, snapshot)
	}
	if err == nil {
		err = copySparse(o.data(), snapshot, false)
	}
	if err != nil {
		_ = o.removeData() // what stays fails the start that follows
	}
	return err == nil
}

// forget removes the data that a snapshot began, and the snapshot.
func (o Options) forget() error {
	snapshot, err := o.snapshot()
	if err != nil {
		return err
	}
	return errors.Join(discard(snapshot), o.removeData())
}

// discard removes a snapshot, all of it at once for those that copy it.
func discard(snapshot string) error {
	dir, err := os.MkdirTemp(filepath.Dir(snapshot), "old-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Rename(snapshot, filepath.Join(dir, "snapshot")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // another process did
}

func (o Options) data() string { return filepath.Join(o.Dir, etcdData) }

func (o Options) removeData() error { return os.RemoveAll(o.data()) }

// source is a control plane whose data is taken for snapshots.
func (o Options) source(dir string) *ControlPlane {
	six := o.Address.Is6()
	o.Dir, o.Netns = dir, ""
	o.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if six {
		o.Address = netip.IPv6Loopback()
	}
	return newControlPlane(o)
}

// snapshot is the folder of the options' snapshot, which is named after a hash of all that it depends on.
func (o Options) snapshot() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, program := range []string{etcd, apiServer} {
		path, err := filepath.EvalSymlinks(filepath.Join(o.Assets, program))
		if err != nil {
			return "", err
		}
		info, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, path, info.Size(), info.ModTime().UnixNano())
	}
	fmt.Fprintf(hash, "%q\n%q\n", etcdArgs(), o.source("").apiServerArgs(0))
	if o.CRDs != nil {
		err = fs.WalkDir(o.CRDs, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := fs.ReadFile(o.CRDs, name)
			fmt.Fprintf(hash, "%q %q\n", name, data)
			return err
		})
	}
	return filepath.Join(cache, "berth", "control-planes", hex.EncodeToString(hash.Sum(nil)[:8])), err
}

// errBusy says that another process makes the snapshot.
var errBusy = errors.New("another process makes it")

// makeSnapshot starts a control plane and keeps its data as a snapshot. If another process is doing so, it returns
// errBusy.
func (o Options) makeSnapshot(ctx context.Context, snapshot string) error {
	cache := filepath.Dir(snapshot)
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(snapshot+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errBusy
	}
	if _, err := os.Stat(snapshot); err == nil {
		return nil // made meanwhile
	}
	if err := removeOld(cache); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	source := o.source(dir)
	if err := errors.Join(source.raiseAPI(ctx), source.Stop()); err != nil {
		return err
	}
	made := filepath.Join(dir, "snapshot")
	if err := copySparse(made, source.data(), true); err != nil {
		return err
	}
	return os.Rename(made, snapshot)
}

// removeOld removes snapshots, and what killed processes left of them.
func removeOld(cache string) error {
	entries, err := os.ReadDir(cache)
	for _, e := range entries {
		if info, gone := e.Info(); gone == nil && !strings.HasSuffix(e.Name(), ".lock") && time.Since(info.ModTime()) > snapshotAge {
			err = errors.Join(err, discard(filepath.Join(cache, e.Name())))
		}
	}
	return err
}

// copySparse copies a folder, and leaves out blocks that are zero: etcd reserves 64 MiB for its log. With
// sync, the files are on the disk when it returns.
func copySparse(to, from string, sync bool) error {
	if out, err := exec.Command("cp", "--recursive", "--sparse=always", "--", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	if !sync {
		return nil
	}
	dir, err := os.Open(to)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}
