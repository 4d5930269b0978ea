package vm

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed guest/init.sh
var initScript []byte

// bootModules are the modules that the guest needs for its root.
var bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// initrd creates the archive for the guest's first root. modules is the root directory above /lib/modules/VERSION.
func initrd(ctx context.Context, modules, version string) ([]byte, error) {
	shell, err := program(busybox)
	if err != nil {
		return nil, err
	}
	if err := static(shell); err != nil {
		return nil, err
	}
	files, err := withDependencies(ctx, modules, version)
	if err != nil {
		return nil, err
	}
	var a archive
	for _, dir := range []string{"dev", "proc", "sys", "host", "changes", "root", "modules"} {
		a.dir(dir)
	}
	a.file("init", 0o755, initScript)
	var order strings.Builder
	for _, f := range append([]string{shell}, files...) {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if f == shell {
			a.file("busybox", 0o755, data)
			continue
		}
		a.file("modules/"+filepath.Base(f), 0o644, data)
		fmt.Fprintln(&order, filepath.Base(f))
	}
	a.file("modules/order", 0o644, []byte(order.String()))
	return a.bytes(), nil
}

// withDependencies returns the files of bootModules and their dependencies, in load order.
func withDependencies(ctx context.Context, modules, version string) ([]string, error) {
	path, err := program(probe)
	if err != nil {
		return nil, err
	}
	out, err := output(exec.CommandContext(ctx, path, append([]string{"--dirname", modules, "--set-version", version, "--show-depends", "--all"}, bootModules...)...))
	if err != nil {
		return nil, fmt.Errorf("find the modules for the guest's root: %w", err)
	}
	var files []string
	for line := range strings.Lines(string(out)) { // "insmod FILE", or "builtin NAME"
		if f := strings.Fields(line); len(f) > 1 && f[0] == "insmod" && !slices.Contains(files, f[1]) {
			files = append(files, f[1])
		}
	}
	return files, nil
}

// archive is an initramfs: a cpio archive in the format "newc" (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	buf   bytes.Buffer
	count uint32
}

func (a *archive) dir(name string) { a.entry(name, 0o040755, nil) }

func (a *archive) file(name string, perm fs.FileMode, data []byte) {
	a.entry(name, 0o100000|uint32(perm), data)
}

func (a *archive) entry(name string, mode uint32, data []byte) {
	a.count++
	a.buf.WriteString("070701")
	for _, field := range []uint32{
		a.count, mode, 0, 0, 1, 0, uint32(len(data)), 0, 0, 0, 0, uint32(len(name) + 1), 0,
	} { // ino mode uid gid nlink mtime filesize maj min rmaj rmin namesize chksum
		fmt.Fprintf(&a.buf, "%08x", field)
	}
	a.buf.WriteString(name + "\x00")
	a.pad()
	a.buf.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

func (a *archive) bytes() []byte {
	a.entry("TRAILER!!!", 0, nil)
	return a.buf.Bytes()
}
