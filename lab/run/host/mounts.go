package host

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// programsDir is where a machine sees folders of programs: their own paths may be hidden.
const programsDir = "/run/vpclab/bin"

// disk is the folder of a machine's disk. It outlives a reboot.
type disk string

func (d disk) path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// settingsDir is where a machine sees the files that its programs are started with.
const settingsDir = "/var/lib/vpclab"

// setting is one of them, as this machine sees it.
func (d disk) setting(name string) string { return d.path("lib", "vpclab", name) }

// folders of the disk, and where the machine sees them in place of this machine's own.
var folders = map[string]string{
	"opt": "/opt",     // CNI plugins
	"lib": "/var/lib", // containerd, kubelet, cni
	"log": "/var/log", // pods, containers
}

// format creates the folders of an installed machine that are missing.
func (d disk) format() error {
	for _, dir := range []string{"etc", "work", "opt/cni/bin", "lib/containerd", "lib/kubelet", "lib/cni", "lib/vpclab", "log/pods", "log/containers"} {
		if err := os.MkdirAll(d.path(dir), 0o755); err != nil {
			return fmt.Errorf("make the disk: %w", err)
		}
	}
	return nil
}

// kernelSettings are those that a kubelet sets for the whole kernel
// (k8s.io/kubernetes/pkg/kubelet/cm, setupKernelTunables), with the values that it
// wants. A machine of the lab has files in their place, so that the kernel's own stay.
var kernelSettings = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// boot creates a mount namespace with this machine's files, but with an empty /run, an /etc that can be changed, the
// folders of the disk, and further folders by path. It lives as long as the file is open, or a process runs in it.
func boot(d disk, seen map[string]string) (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		file, err := func() (*os.File, error) {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return nil, fmt.Errorf("make a mount namespace: %w", err)
			}
			if err := mountAll(d, seen); err != nil {
				return nil, err
			}
			return os.Open("/proc/thread-self/ns/mnt")
		}()
		done <- result{file, err}
	}()
	r := <-done
	return r.file, r.err
}

// mountAll mounts what boot promises, in the calling thread's namespace.
func mountAll(d disk, seen map[string]string) error {
	// Nothing may be seen outside; inside, kubelet and containers see each other's.
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("separate mounts: %w", err)
		}
	}
	overlay := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", d.path("etc"), d.path("work"))
	if err := unix.Mount("overlay", "/etc", "overlay", 0, overlay); err != nil {
		return fmt.Errorf("mount an overlay at /etc: %w", err)
	}
	if err := ownEtc(d); err != nil {
		return err
	}
	// All folders are opened before the first hides another.
	binds := maps.Clone(seen) // source by target
	for from, to := range folders {
		binds[to] = d.path(from)
	}
	sources := map[string]int{}
	defer func() {
		for _, fd := range sources {
			_ = unix.Close(fd)
		}
	}()
	for to, from := range binds {
		fd, err := unix.Open(from, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", from, err)
		}
		sources[to] = fd
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount a tmpfs at /run: %w", err)
	}
	if err := os.MkdirAll("/run/lock", 0o755); err != nil { // iptables' own lies in /run
		return err
	}
	for to, fd := range sources {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := bind(fmt.Sprintf("/proc/self/fd/%d", fd), to); err != nil {
			return err
		}
	}
	// Volumes are mounted below it, and containers see them (kubelet, "mount propagation").
	if err := bind("/var/lib/kubelet", "/var/lib/kubelet"); err != nil {
		return err
	}
	return maskSettings()
}

// bind mounts a folder or file elsewhere, in a peer group of its own: mounts below one are not seen below the other.
func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", from, to, err)
	}
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", to, "", propagation, ""); err != nil {
			return fmt.Errorf("separate the mount at %s: %w", to, err)
		}
	}
	return nil
}

// ownEtc removes this machine's cluster configuration from a new machine's /etc, and sets a machine ID.
func ownEtc(d disk) error {
	if _, err := os.Stat(d.path("etc", "machine-id")); err == nil {
		return nil // not its first boot
	}
	for _, dir := range []string{"/etc/cni", "/etc/kubernetes", "/etc/containerd"} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	if err := os.WriteFile("/etc/machine-id", []byte(hex.EncodeToString(id)+"\n"), 0o444); err != nil {
		return err
	}
	// What a pod with dnsPolicy Default gets: the lab has no name server.
	_ = os.Remove("/etc/resolv.conf") // which may be a link
	return os.WriteFile("/etc/resolv.conf", nil, 0o644)
}

// maskSettings puts files in the place of kernel settings.
func maskSettings() error {
	const dir = "/run/vpclab/sysctl"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, value := range kernelSettings {
		setting := "/proc/sys/" + name
		if _, err := os.Stat(setting); errors.Is(err, os.ErrNotExist) {
			continue
		}
		file := filepath.Join(dir, filepath.Base(filepath.Dir(name))+"."+filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, setting, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mask %s: %w", setting, err)
		}
	}
	return nil
}
