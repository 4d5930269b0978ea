// Package ns makes, enters, lists and removes network namespaces, for tests and for the lab. Berth itself makes none.
// They are mounted below /run/netns like those of iproute2, so that `ip netns` shows them. The names of each lab's
// namespaces begin with the same prefix, so that those of a crashed lab can be found and removed.
package ns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dir is where named network namespaces are mounted (ip-netns(8)).
const Dir = "/run/netns"

// Path is the file of a named namespace.
func Path(name string) string { return filepath.Join(Dir, name) }

// Create makes a namespace. An existing name is an error.
func Create(name string) error {
	done := make(chan error, 1)
	go func() {
		// The thread stays in the new namespace, so it must end with this
		// goroutine and not run others.
		runtime.LockOSThread()
		h, err := netns.NewNamed(name)
		if err == nil {
			h.Close()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	return nil
}

// Do runs fn on a thread in the namespace at path. Sockets that fn opens and processes that it starts stay in that
// namespace. Other goroutines that fn starts do not run in it.
func Do(path string, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := Enter(path); err != nil {
			done <- err
			return // the locked thread dies with the goroutine
		}
		done <- fn()
	}()
	return <-done
}

// Enter moves the calling thread, which must be locked, to the namespace at path.
func Enter(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

// List returns the names with a prefix, sorted.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Remove deletes the virtual links in a namespace, then the namespace. A missing one is not an error. The links are
// deleted first because the kernel may keep an unnamed namespace and its links for minutes.
func Remove(name string) error {
	path := Path(name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var linkErr error
	if mounted(path) {
		linkErr = Netlink(path, deleteLinks)
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return errors.Join(linkErr, fmt.Errorf("unmount network namespace %s: %w", name, err))
	}
	err := os.Remove(path)
	if errors.Is(err, unix.EBUSY) {
		err = removeHidden(path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(linkErr, fmt.Errorf("remove network namespace %s: %w", name, err))
	}
	return linkErr
}

// mounted reports whether the file at path is a namespace, and not left by an incomplete creation or removal.
func mounted(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Sysctl is a kernel parameter under /proc/sys. Its name has slashes, as link names may contain dots:
// "net/ipv4/ip_forward".
type Sysctl struct{ Name, Value string }

// Forwarding makes a namespace a router that accepts all source addresses. New links inherit the defaults.
var Forwarding = []Sysctl{
	{Name: "net/ipv4/ip_forward", Value: "1"},
	{Name: "net/ipv4/conf/all/rp_filter", Value: "0"},
	{Name: "net/ipv4/conf/default/rp_filter", Value: "0"},
	{Name: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
	{Name: "net/ipv6/conf/default/disable_ipv6", Value: "0"},
	{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
	{Name: "net/ipv6/conf/default/accept_dad", Value: "0"},
}

// SetSysctls sets parameters of the calling thread's namespace, in order.
func SetSysctls(params ...Sysctl) error {
	for _, p := range params {
		if err := os.WriteFile("/proc/sys/"+p.Name, []byte(p.Value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", strings.ReplaceAll(p.Name, "/", "."), p.Value, err)
		}
	}
	return nil
}
