package vm

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Image is the folder from which a machine starts, made by Prepare.
type Image string

// Environment names an environment variable: the folder of an image, for those who
// cannot prepare one, since they have no network.
const Environment = "BERTH_VM_IMAGE"

// kernelPackage is Debian's metapackage of the stock kernel. Not the one for clouds,
// which lacks 9p.
const kernelPackage = "linux-image-amd64"

func (i Image) kernel() string  { return filepath.Join(string(i), "vmlinux") }
func (i Image) initrd() string  { return filepath.Join(string(i), "initrd.img") }
func (i Image) modules() string { return filepath.Join(string(i), "lib", "modules") }

// Prepare returns the image with Debian's stock kernel, of the version in the machine's package lists. It is made
// once, from a Debian package that is downloaded and unpacked but not installed, and kept in berth/vm below the user's
// cache folder; concurrent callers wait. If BERTH_VM_IMAGE is set, its folder is the image. say is called with slow
// steps.
func Prepare(ctx context.Context, say func(string)) (Image, error) {
	if err := supported(); err != nil {
		return "", err
	}
	if dir := os.Getenv(Environment); dir != "" {
		i := Image(dir)
		if _, err := os.Stat(i.initrd()); err != nil { //nolint:gosec // who runs tests says where the folder is
			return "", fmt.Errorf("%s is %s, expected a folder that hack/vm.sh --prepare printed: %w", Environment, dir, err)
		}
		return i, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the folder for the virtual machine's kernel: %w", err)
	}
	prepare := func() (Image, error) {
		k, err := findKernel(ctx)
		if err != nil {
			return "", err
		}
		return prepareIn(ctx, filepath.Join(cache, "berth", "vm"), k, func(ctx context.Context, dir string) error {
			say("Preparing the virtual machine's kernel once for this version, of the Debian package " + k.name + " " + k.version)
			return makeImage(ctx, dir, k)
		})
	}
	i, err := prepare()
	if err == nil || os.Geteuid() != 0 || ctx.Err() != nil {
		return i, err
	}
	// Package lists that were never fetched, or are old, are the usual reason.
	apt, missing := program(aptGet)
	if missing != nil {
		return "", missing
	}
	say("Refreshing the package lists")
	if _, stale := output(exec.CommandContext(ctx, apt, "update", "-q")); stale != nil {
		return "", errors.Join(err, stale)
	}
	return prepare()
}

// kernel is a Debian package with a kernel.
type kernel struct{ name, version string }

// key names its image: by the version of the kernel, and by how the image is made.
func (k kernel) key() string {
	sum := sha256.Sum256(append([]byte("1\n"+strings.Join(bootModules, " ")+"\n"), initScript...))
	return k.name + "_" + strings.ReplaceAll(k.version, ":", "%3a") + "_" + hex.EncodeToString(sum[:6])
}

// halfMade is the name of a folder in which an image is being made, or was.
const halfMade = "half-made"

// prepareIn returns the image of a kernel below dir, which build makes if it is missing.
func prepareIn(ctx context.Context, dir string, k kernel, build func(ctx context.Context, dir string) error) (Image, error) {
	final := filepath.Join(dir, k.key())
	if _, err := os.Stat(final); err == nil {
		return Image(final), nil // complete: it got its name last
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(final); err == nil {
		return Image(final), nil // another process was first
	}
	half := filepath.Join(dir, halfMade) // one's own: the lock is held
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	if err := os.Mkdir(half, 0o755); err != nil {
		return "", err
	}
	if err := build(ctx, half); err != nil {
		return "", errors.Join(fmt.Errorf("prepare the virtual machine's kernel: %w", err), os.RemoveAll(half))
	}
	if err := os.Rename(half, final); err != nil {
		return "", err
	}
	return Image(final), nil
}

// lock takes the lock of a file, and waits for it.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("wait for another that prepares the virtual machine's kernel: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// findKernel asks the machine's package lists which kernel is the stock one.
func findKernel(ctx context.Context) (kernel, error) {
	apt, err := program(aptShow)
	if err != nil {
		return kernel{}, err
	}
	out, err := output(exec.CommandContext(ctx, apt, "show", "--no-all-versions", kernelPackage))
	if err != nil {
		return kernel{}, fmt.Errorf("find the Debian package of the kernel (apt-get update fetches package lists): %w", err)
	}
	return parseKernel(string(out))
}

// parseKernel reads what apt-cache show says of the metapackage, whose one dependency is
// the package with the kernel: "Depends: linux-image-6.1.0-48-amd64 (= 6.1.172-1)".
func parseKernel(text string) (kernel, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "Depends:"); ok {
			first, _, _ := strings.Cut(rest, ",")
			if f := strings.Fields(strings.NewReplacer("(", " ", ")", " ", "=", " ").Replace(first)); len(f) == 2 && strings.HasPrefix(f[0], "linux-image-") {
				return kernel{f[0], f[1]}, nil
			}
		}
	}
	return kernel{}, fmt.Errorf("the Debian package %s names no kernel among its dependencies:\n%s", kernelPackage, text)
}

// makeImage makes the image in dir.
func makeImage(ctx context.Context, dir string, k kernel) error {
	deb, err := download(ctx, dir, k)
	if err != nil {
		return err
	}
	image, version, err := unpack(ctx, deb, dir)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	if err := os.Remove(deb); err != nil {
		return err
	}
	plain, err := vmlinux(ctx, image)
	if err != nil {
		return fmt.Errorf("unpack the kernel of %s: %w", k.name, err)
	}
	if err := os.WriteFile(Image(dir).kernel(), plain, 0o644); err != nil {
		return err
	}
	index, err := program(depmod)
	if err != nil {
		return err
	}
	if _, err := output(exec.CommandContext(ctx, index, "--basedir", dir, version)); err != nil {
		return fmt.Errorf("index the kernel's modules: %w", err)
	}
	rd, err := initrd(ctx, dir, version)
	if err != nil {
		return fmt.Errorf("make the initrd: %w", err)
	}
	return os.WriteFile(Image(dir).initrd(), rd, 0o644)
}

// download fetches a package into dir and returns its file.
func download(ctx context.Context, dir string, k kernel) (string, error) {
	apt, err := program(aptGet)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, apt, "download", "--quiet", "-o", "APT::Sandbox::User=root", k.name+"="+k.version)
	cmd.Dir = dir
	if _, err := output(cmd); err != nil {
		return "", fmt.Errorf("download the Debian package %s %s (apt-get update fetches package lists; a sandbox has no network): %w", k.name, k.version, err)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download left the files %q, expected one", debs)
	}
	return debs[0], nil
}

// unpack writes the modules of a kernel's package below dir, and returns its kernel as a
// bzImage and its version. Nothing of the package is run.
func unpack(ctx context.Context, deb, dir string) (image []byte, version string, err error) {
	dpkg, err := program(dpkgDeb)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, dpkg, "--fsys-tarfile", deb)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	files := tar.NewReader(pipe)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = unpackFile(h, files, dir, &image, &version)
		}
		if err != nil {
			cancel()
			return nil, "", errors.Join(err, cmd.Wait())
		}
	}
	if err := cmd.Wait(); err != nil {
		return nil, "", err
	}
	if image == nil {
		return nil, "", errors.New("it has no kernel below /boot")
	}
	return image, version, nil
}

func unpackFile(h *tar.Header, data io.Reader, dir string, image *[]byte, version *string) (err error) {
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if v, ok := strings.CutPrefix(name, "boot/vmlinuz-"); ok {
		*version = v
		*image, err = io.ReadAll(data)
		return err
	}
	name = strings.TrimPrefix(name, "usr/")
	if h.Typeflag != tar.TypeReg || !wanted(name) {
		return nil
	}
	target := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, data)
	return errors.Join(err, f.Close())
}

// wanted selects an eighth of the files of a kernel's package: modules, but of drivers only those of QEMU's devices
// and of virtual networks.
func wanted(name string) bool {
	_, rest, ok := strings.Cut(name, "lib/modules/")
	if !ok {
		return false
	}
	_, rest, _ = strings.Cut(rest, "/") // the version
	rest = strings.TrimPrefix(rest, "kernel/")
	driver, ok := strings.CutPrefix(rest, "drivers/")
	if !ok {
		return !strings.HasPrefix(rest, "sound/")
	}
	switch dir, file := path.Split(driver); dir {
	case "net/", "net/bonding/", "net/ipvlan/", "net/macvlan/", "net/vxlan/", "virtio/":
		return true
	case "char/":
		return strings.HasPrefix(file, "virtio_")
	case "char/hw_random/":
		return strings.HasPrefix(file, "virtio") || strings.HasPrefix(file, "rng-core")
	}
	return false
}
