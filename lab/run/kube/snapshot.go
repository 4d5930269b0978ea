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

// A snapshot is etcd's data of a fresh control plane: the objects that the API server creates by itself, and the CRDs.
// One is kept per combination of programs, arguments and CRDs in the user's cache directory. It contains neither
// certificates nor keys.

// snapshotAge is how long a snapshot is kept; then it is created again.
const snapshotAge = 7 * 24 * time.Hour

// restoredPatience limits a start from a snapshot: etcd may hang on damaged data.
const restoredPatience = time.Minute

// restore copies a snapshot, which it creates if it is missing, to the data of a new control plane. It reports whether
// that succeeded; otherwise the control plane starts without data.
func (o Options) restore(ctx context.Context) bool {
	if o.Kubelets { // the data contains the API server's endpoints, with leases
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
		_ = o.removeData() // if this fails, the following start fails
	}
	return err == nil
}

// forget removes the data that was restored from a snapshot, and the snapshot.
func (o Options) forget() error {
	snapshot, err := o.snapshot()
	if err != nil {
		return err
	}
	return errors.Join(discard(snapshot), o.removeData())
}

// discard removes a snapshot atomically for processes that copy it.
func discard(snapshot string) error {
	dir, err := os.MkdirTemp(filepath.Dir(snapshot), "old-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Rename(snapshot, filepath.Join(dir, "snapshot")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // another process removed it
}

func (o Options) data() string { return filepath.Join(o.Dir, etcdData) }

func (o Options) removeData() error { return os.RemoveAll(o.data()) }

// source returns the control plane whose data becomes a snapshot.
func (o Options) source(dir string) *ControlPlane {
	six := o.Address.Is6()
	o.Dir, o.Netns = dir, ""
	o.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if six {
		o.Address = netip.IPv6Loopback()
	}
	return newControlPlane(o)
}

// snapshot returns the folder of the options' snapshot. Its name is a hash of everything that it depends on.
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

// errBusy means that another process is creating the snapshot.
var errBusy = errors.New("another process is creating the snapshot")

// makeSnapshot starts a control plane and keeps its data as a snapshot. It returns errBusy if another process is doing
// so.
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
		return nil // created by another process
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
	if err := errors.Join(source.startAPI(ctx), source.Stop()); err != nil {
		return err
	}
	made := filepath.Join(dir, "snapshot")
	if err := copySparse(made, source.data(), true); err != nil {
		return err
	}
	return os.Rename(made, snapshot)
}

// removeOld removes old snapshots, including incomplete ones of killed processes.
func removeOld(cache string) error {
	entries, err := os.ReadDir(cache)
	for _, e := range entries {
		if info, gone := e.Info(); gone == nil && !strings.HasSuffix(e.Name(), ".lock") && time.Since(info.ModTime()) > snapshotAge {
			err = errors.Join(err, discard(filepath.Join(cache, e.Name())))
		}
	}
	return err
}

// copySparse copies a folder without blocks of zeros: etcd preallocates 64 MiB for its log. With sync, the files are
// on disk when it returns.
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
