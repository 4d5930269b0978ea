package vm

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"runtime"
)

// Programs of the host by which a machine is made and run.
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

// packages are the Debian packages that have the programs.
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

// directories are where programs of Debian are, which a user's PATH may lack.
var directories = []string{"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}

// program returns the path of one of them. The error of one that is missing names the
// Debian package that has it.
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
	return "", fmt.Errorf("a virtual machine needs the program %s, of the Debian package %s (hack/deps.sh vm installs it)", name, debian)
}

// rightArchitecture reports whether machines can be run here.
func rightArchitecture(arch string) error {
	if arch != "amd64" {
		return fmt.Errorf("virtual machines are for hosts of architecture amd64, this is %s: their kernel is Debian's for amd64 and their root is the host's", arch)
	}
	return nil
}

// static reports whether a program needs no libraries, which an initrd has not.
func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("look into %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s needs libraries: install the Debian package %s in place of the one that has it", path, packages[busybox])
		}
	}
	return nil
}

func supported() error { return rightArchitecture(runtime.GOARCH) }
