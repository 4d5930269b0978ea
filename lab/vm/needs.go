package vm

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"runtime"
)

// Programs of the host that create and run a machine.
const (
	qemu    = "qemu-system-x86_64"
	busybox = "busybox"
	depmod  = "depmod"
	probe   = "modprobe"
	xz      = "xz"
	aptGet  = "apt-get"
	aptShow = "apt-cache"
	dpkgDeb = "dpkg-deb"
)

// packages are the Debian packages of the programs.
var packages = map[string]string{
	qemu:    "qemu-system-x86",
	busybox: "busybox-static",
	depmod:  "kmod",
	probe:   "kmod",
	xz:      "xz-utils",
	aptGet:  "apt",
	aptShow: "apt",
	dpkgDeb: "dpkg",
}

// directories are Debian's directories of programs, which a user's PATH may lack.
var directories = []string{"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}

// program returns the path of a program. If it is missing, the error names its Debian package.
func program(name string) (string, error) { return find(name, packages[name]) }

func find(name, debian string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range directories {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("a virtual machine needs the program %s, from the Debian package %s (hack/deps.sh vm installs it)", name, debian)
}

// rightArchitecture returns an error if machines cannot run on this architecture.
func rightArchitecture(arch string) error {
	if arch != "amd64" {
		return fmt.Errorf("virtual machines require a host with architecture amd64, this is %s: their kernel is Debian's for amd64, and their root is the host's", arch)
	}
	return nil
}

// static returns an error if a program needs libraries, which an initrd lacks.
func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s needs libraries: install the Debian package %s instead of the one that provides it", path, packages[busybox])
		}
	}
	return nil
}

func supported() error { return rightArchitecture(runtime.GOARCH) }
