package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/lab/run/proc"
)

// Containerd describes a container runtime's programs: containerd, its shim and ctr, in one directory. runc is found in
// PATH.
type Containerd struct {
	Dir     string
	Version string // such as 1.6.20
	major   int
}

// FindContainerd looks for the programs in a directory, or in the directory of this machine's containerd if dir is empty.
func FindContainerd(ctx context.Context, dir string) (Containerd, error) {
	if dir == "" {
		path, err := exec.LookPath("containerd")
		if err != nil {
			return Containerd{}, fmt.Errorf("find a container runtime: %w (install the Debian packages containerd and runc, or set a directory with containerd 2)", err)
		}
		dir = filepath.Dir(path)
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return Containerd{}, fmt.Errorf("find a container runtime: %w", err)
		}
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return Containerd{}, fmt.Errorf("find a container runtime: %w (install the Debian package runc)", err)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "containerd"), "--version").Output()
	if err != nil {
		return Containerd{}, fmt.Errorf("get the version of containerd: %w", err)
	}
	return parseVersion(dir, string(out))
}

// parseVersion parses the output of containerd --version: its name, its module, its version and its commit.
func parseVersion(dir, said string) (Containerd, error) {
	fields := strings.Fields(said)
	if len(fields) < 3 {
		return Containerd{}, fmt.Errorf("containerd --version printed %q: want a name, a module and a version", said)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(fields[2], "v"), "~")
	major, err := strconv.Atoi(strings.Split(version, ".")[0])
	if err != nil {
		return Containerd{}, fmt.Errorf("containerd --version printed %q: want a version such as 1.6.20 in the third place", said)
	}
	return Containerd{Dir: dir, Version: version, major: major}, nil
}

// PauseImage is the sandbox image of Kubernetes 1.37.
const PauseImage = "registry.k8s.io/pause:3.10.2"

// Configurations of containerd 1 and 2. OOM scores below containerd's own require a capability that containers often
// lack, and not every kernel has AppArmor.
const (
	configuration1 = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[1]s"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "%[2]s"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`
	configuration2 = `version = 3
disabled_plugins = ["io.containerd.snapshotter.v1.erofs", "io.containerd.nri.v1.nri"]
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "%[2]s"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "%[1]s"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`
)

func (c Containerd) configuration(snapshotter string) string {
	if c.major < 2 {
		return fmt.Sprintf(configuration1, PauseImage, snapshotter)
	}
	return fmt.Sprintf(configuration2, PauseImage, snapshotter)
}

// snapshotter returns overlayfs, except on a file system that is itself an overlay and does not support another one on
// top.
func (d disk) snapshotter() string {
	var st unix.Statfs_t
	if unix.Statfs(string(d), &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}

func containerdCommand() proc.Command {
	return proc.Command{
		Path: programsDir + "/containerd/containerd", Args: []string{"--config=" + settingsDir + "/" + containerdConfig},
		Env: []string{"PATH=" + Path}, // contains its shim and runc
	}
}

// startContainerd starts the runtime and returns when it has the machine's images.
func (h *Host) startContainerd(ctx context.Context) error {
	if err := os.WriteFile(h.disk().setting(containerdConfig), []byte(h.Runtime.configuration(h.disk().snapshotter())), 0o644); err != nil {
		return err
	}
	if err := h.Containerd.Start(); err != nil {
		return err
	}
	if err := h.WaitContainerd(ctx); err != nil {
		return err
	}
	return h.importImages(ctx)
}

// WaitContainerd waits until the runtime responds to CRI calls, which is shortly after it responds to ctr. A kubelet that
// starts earlier exits.
func (h *Host) WaitContainerd(ctx context.Context) error {
	return h.Containerd.Wait(ctx, func() error { return h.askCRI(ctx) })
}

// CRI connects to the runtime's socket, which its kubelet uses too. The caller must close the connection.
func (h *Host) CRI() (*grpc.ClientConn, error) {
	socket := fmt.Sprintf("/proc/%d/root/run/containerd/containerd.sock", h.Containerd.PID())
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// askCRI requests the runtime's version over CRI.
func (h *Host) askCRI(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := h.CRI()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	return err
}

// RestartContainerd kills the runtime and starts it again. Containers keep running.
func (h *Host) RestartContainerd(ctx context.Context) error {
	return errors.Join(h.Containerd.Kill(), h.Containerd.Start(), h.WaitContainerd(ctx))
}

func (h *Host) ctr(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	return h.run(ctx, stdin, "ctr", append([]string{"--namespace=k8s.io"}, args...)...)
}

// importImages imports new images one by one, because imports are I/O-bound.
func (h *Host) importImages(ctx context.Context) error {
	for _, archive := range h.Images {
		done := h.disk().setting("imported-" + filepath.Base(archive.File))
		if _, err := os.Stat(done); err == nil {
			continue
		}
		if err := h.Import(ctx, archive); err != nil {
			return err
		}
		if err := os.WriteFile(done, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Archive is a tar archive of images.
type Archive struct {
	File string
	// Name is the repository of the only image in it, such as registry.example/network/berth-node. If set, the image is
	// also found by its digest, as if the machine had pulled it.
	Name string
}

// Import imports the images of an archive into the machine's runtime.
func (h *Host) Import(ctx context.Context, archive Archive) error {
	f, err := os.Open(archive.File)
	if err != nil {
		return fmt.Errorf("import an image: %w", err)
	}
	defer f.Close()
	args := []string{"image", "import", "--snapshotter=" + h.disk().snapshotter()}
	if archive.Name != "" {
		args = append(args, "--base-name="+archive.Name, "--digests")
		if h.Runtime.major >= 2 { // its transfer service ignores --digests for an image that has a name
			args = append(args, "--local")
		}
	}
	if _, err := h.ctr(ctx, f, append(args, "-")...); err != nil {
		return fmt.Errorf("import %s: %w", archive.File, err)
	}
	return nil
}
