//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
	"github.com/berthnet/berth/test/harness"
)

// patience is for one step of a runtime on a busy machine.
const patience = 30 * time.Second

// containerd is a node's container runtime: a process in the node's network
// namespace with folders, sockets and cgroups of its own.
type containerd struct {
	cri.RuntimeServiceClient
	images cri.ImageServiceClient
	node   *node.Node
	dir    string
	group  cgroup.Group
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone
	conn   *grpc.ClientConn
}

// configuration is of version 2, which containerd 1.6 and 1.7 read and 2.x
// converts. Everything lies in the node's own folders; native snapshots work
// on any file system; oom scores below its own need a capability that
// containers often lack.
const configuration = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/c.sock"
[ttrpc]
  address = "%[1]s/t.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "%[3]s"
  conf_dir = "%[4]s"
`

// startContainerd gives a node a container runtime, which is removed when the test ends. A test that
// passes must have removed its sandboxes, and then nothing of them may be left.
func startContainerd(t *testing.T, n *node.Node) *containerd {
	t.Helper()
	c := &containerd{
		node: n, dir: filepath.Join(n.Dir, "ctd"),
		group: cgroup.Group(filepath.Join(string(tree), strings.TrimSuffix(n.PodPrefix, "-"))),
	}
	harness.OK(t, os.MkdirAll(c.dir, 0o755))
	text := fmt.Sprintf(configuration, c.dir, pauseImageName, n.CNIBinDir(), n.ConfDir())
	harness.OK(t, os.WriteFile(c.config(), []byte(text), 0o644))
	t.Cleanup(func() { c.close(t) })
	c.start(t)
	c.importImage(t)
	return c
}

func (c *containerd) config() string  { return filepath.Join(c.dir, "config.toml") }
func (c *containerd) logFile() string { return filepath.Join(c.node.Dir, "log", "containerd.log") }
func (c *containerd) socket() string  { return filepath.Join(c.dir, "c.sock") }
func (c *containerd) netnsDir() string {
	return filepath.Join(c.dir, "state/io.containerd.grpc.v1.cri/netns")
}
func (c *containerd) podsGroup() cgroup.Group { return c.group + "/pods" }
func (c *containerd) ownGroup() cgroup.Group  { return c.group + "/runtime" }
func (c *containerd) stop(t *testing.T)       { c.end(t, syscall.SIGTERM) }
func (c *containerd) crash(t *testing.T)      { c.end(t, syscall.SIGKILL) }

// start starts the process and returns when it serves CRI.
func (c *containerd) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	harness.OK(t, err)
	defer log.Close()
	cmd, exited := exec.Command("containerd", "--config", c.config()), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	harness.OK(t, ns.Do(c.node.Netns, cmd.Start))
	go func() {
		_ = cmd.Wait() // how it ends is in its log
		close(exited)
	}()
	c.cmd, c.exited = cmd, exited
	harness.OK(t, join(c.ownGroup(), cmd.Process.Pid))
	c.conn, err = grpc.NewClient("unix://"+c.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	harness.OK(t, err)
	c.RuntimeServiceClient, c.images = cri.NewRuntimeServiceClient(c.conn), cri.NewImageServiceClient(c.conn)
	harness.Eventually(t, patience, "containerd serves CRI", func() error {
		select {
		case <-exited:
			t.Fatalf("containerd ended:\n%s", proc.Tail(c.logFile(), 40))
		default:
		}
		c.conn.ResetConnectBackoff()
		ok, err := c.condition(t, cri.RuntimeReady)
		if err == nil && !ok {
			err = errors.New("the runtime is not ready")
		}
		return err
	})
}

// end ends the process, not its children, and returns when it is gone.
func (c *containerd) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	if c.exited == nil {
		return
	}
	if c.conn != nil {
		c.conn.Close()
	}
	_ = c.cmd.Process.Signal(s) // one that is gone is seen below
	select {
	case <-c.exited:
	case <-time.After(patience):
		t.Errorf("containerd of %s does not end within %v of %v", c.node.Name, patience, s)
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
}

// importImage loads the pause image, and returns when CRI knows it.
func (c *containerd) importImage(t *testing.T) {
	t.Helper()
	image, err := pauseImage()
	harness.OK(t, err)
	path := filepath.Join(c.dir, "pause.tar")
	harness.OK(t, os.WriteFile(path, image, 0o644))
	harness.OK(t, c.ctr(t, "image", "import", "--snapshotter=native", path))
	harness.Eventually(t, patience, "CRI knows the image", func() error {
		reply, err := c.images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: pauseImageName}})
		if err == nil && reply.GetImage() == nil {
			err = errors.New("no such image")
		}
		return err
	})
}

// ctr runs containerd's client in the namespace of CRI.
func (c *containerd) ctr(t *testing.T, args ...string) error {
	t.Helper()
	ctx := harness.Deadline(t, patience)
	out, err := exec.CommandContext(ctx, "ctr", append([]string{"--address", c.socket(), "--namespace=k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %v: %w\n%s", args, err, out)
	}
	return nil
}

// condition asks for one of the runtime's conditions.
func (c *containerd) condition(t *testing.T, kind string) (bool, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	reply, err := c.Status(ctx, &cri.StatusRequest{})
	for _, condition := range reply.GetStatus().GetConditions() {
		if condition.Type == kind {
			return condition.Status, err
		}
	}
	return false, err
}

// close ends the runtime and removes what it made. What is left after a test that passed is an error.
func (c *containerd) close(t *testing.T) {
	if !t.Failed() {
		c.stop(t)
		c.checkLeftovers(t)
	}
	if t.Failed() {
		t.Logf("end of the log of containerd on %s:\n%s", c.node.Name, proc.Tail(c.logFile(), 40))
	}
	if c.conn != nil {
		c.conn.Close()
	}
	errs := []error{c.group.Kill(10 * time.Second)}
	if c.exited != nil {
		_ = c.cmd.Process.Kill() // should it not have joined its cgroup
		<-c.exited
	}
	mounts, err := mountsBelow(c.dir)
	errs = append(errs, err)
	for _, m := range mounts {
		errs = append(errs, unix.Unmount(m, unix.MNT_DETACH))
	}
	if err := errors.Join(append(errs, c.group.Remove(), os.RemoveAll(c.dir))...); err != nil {
		t.Errorf("remove containerd of %s: %v", c.node.Name, err)
	}
}

// checkLeftovers is an error for what a runtime without sandboxes must not have.
func (c *containerd) checkLeftovers(t *testing.T) {
	for what, list := range map[string]func() ([]string, error){
		"processes": func() ([]string, error) {
			pids, err := c.group.Processes()
			return strings.Fields(strings.Trim(fmt.Sprint(pids), "[]")), err
		},
		"mounts":             func() ([]string, error) { return mountsBelow(c.dir) },
		"cgroups":            func() ([]string, error) { return children(c.podsGroup()) },
		"network namespaces": func() ([]string, error) { return filepath.Glob(c.netnsDir() + "/*") },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience) // the test's own has ended
		err := poll.Until(ctx, func() error {                              // shims end by themselves
			left, err := list()
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("there are still %v", left)
			}
			return err
		})
		cancel()
		if err != nil {
			t.Errorf("containerd of %s left %s behind: %v", c.node.Name, what, err)
		}
	}
}

// treePrefix begins the name of a run's cgroup.
const treePrefix = "berth-e2e-"

// join moves a process to a group that it makes.
func join(g cgroup.Group, pid int) error {
	if err := g.Create(); err != nil {
		return err
	}
	dirs, err := g.Directories()
	errs := []error{err}
	for _, dir := range dirs {
		errs = append(errs, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	}
	return errors.Join(errs...)
}

// children lists what lies below a group, in any hierarchy.
func children(g cgroup.Group) (found []string, err error) {
	dirs, err := g.Directories()
	for _, dir := range dirs {
		below, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, d := range below {
			if st, err := os.Stat(d); err == nil && st.IsDir() {
				found = append(found, d)
			}
		}
	}
	return found, err
}

// sweepCgroups removes the cgroups of runs that were killed, unless they have processes.
func sweepCgroups() error {
	roots, err := cgroup.Hierarchies()
	errs := []error{err}
	for _, root := range roots {
		old, _ := filepath.Glob(filepath.Join(root, treePrefix+"*"))
		for _, dir := range old {
			g := cgroup.Group(filepath.Base(dir))
			if some, err := g.Populated(); err == nil && !some {
				errs = append(errs, g.Remove())
			}
		}
	}
	return errors.Join(errs...)
}
