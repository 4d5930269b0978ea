package vpccni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/libcni"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/proc"
)

// berthd is Berth's daemon, which the lab runs.
type berthd struct{ *node.Node }

func (d berthd) ready(ctx context.Context) (*pods, error) {
	if _, err := d.Get(ctx, node.ReadyURL); err != nil {
		return nil, err
	}
	files, err := libcni.ConfFiles(d.ConfDir(), []string{".conflist"})
	if err != nil || len(files) == 0 {
		return nil, errors.Join(errors.New("no CNI configuration is installed yet"), err)
	}
	return newPods(d.Node, files[0], "")
}

// The Amazon VPC CNI's programs, by the names in its module.
const (
	Daemon = "aws-k8s-agent"
	Plugin = "routed-eni-cni-plugin"
)

// pluginName is the name under which its image installs the plugin.
const pluginName = "aws-cni"

// ipamdRun is the directory of the socket and the records of the Amazon VPC CNI's daemon. It cannot be
// configured, so each node has a mount namespace with a separate directory there.
const ipamdRun = "/run/aws-node"

// Sweep removes the directory that the Amazon VPC CNI's daemons need outside of their labs, unless it
// contains files. None of the daemons may run.
func Sweep() { _ = os.Remove(ipamdRun) }

// ipamd is the Amazon VPC CNI's daemon on one node.
type ipamd struct {
	*proc.Process
	node   *node.Node
	conf   string // the CNI configuration
	socket string // as seen from outside the mount namespace
}

// newIPAMD installs the plugin on a node, as the image's entry point does, and
// prepares the daemon with the settings of the published manifest, without the network policy agent.
func newIPAMD(b *bed, n *node.Node, env map[string]string) *ipamd {
	run, logs := filepath.Join(n.Dir, "run", "aws-node"), filepath.Dir(n.LogFile())
	for _, dir := range []string{run, ipamdRun} {
		must.OK(os.MkdirAll(dir, 0o755))
	}
	unshare := must.Get(exec.LookPath("unshare"))
	must.OK(os.Symlink(filepath.Join(b.CNIDir, Plugin), filepath.Join(n.CNIBinDir(), pluginName)))
	list := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"aws-cni","disableCheck":true,"plugins":[{"name":"aws-cni","type":%q,
		"vethPrefix":"eni","mtu":"9001","podSGEnforcingMode":"strict","pluginLogFile":%q,"pluginLogLevel":"DEBUG"}]}`,
		pluginName, filepath.Join(logs, "plugin.log"))
	conf := filepath.Join(n.ConfDir(), "10-aws.conflist")
	must.OK(os.WriteFile(conf, []byte(list), 0o644))
	vars := []string{
		"MY_NODE_NAME=" + n.Name,
		"KUBECONFIG=" + b.control.AdminKubeconfig(),
		"AWS_EC2_ENDPOINT=" + lab.EC2URL,
		"CLUSTER_NAME=" + n.Cluster,
		"AWS_VPC_K8S_CNI_LOG_FILE=" + filepath.Join(logs, "ipamd.log"),
		"AWS_VPC_K8S_CNI_LOGLEVEL=DEBUG",
		"AWS_VPC_CNI_NODE_PORT_SUPPORT=true",
		"AWS_VPC_ENI_MTU=9001",
		"AWS_VPC_K8S_CNI_RANDOMIZESNAT=prng",
		"AWS_VPC_K8S_CNI_VETHPREFIX=eni",
		"ENABLE_IPv4=true",
		"ENABLE_SUBNET_DISCOVERY=true",
		"WARM_ENI_TARGET=1",
		"WARM_PREFIX_TARGET=1",
	}
	for k, v := range env {
		vars = append(vars, k+"="+v)
	}
	slices.Sort(vars)
	// Mount the socket's directory, then execute the daemon.
	args := []string{
		"--mount", "--propagation=private", "sh", "-c", `mount --bind "$0" ` + ipamdRun + ` && exec "$1"`,
		run, filepath.Join(b.CNIDir, Daemon),
	}
	return &ipamd{
		Process: proc.New("ipamd of "+n.Name, filepath.Join(logs, "ipamd.out"), func() proc.Command {
			return proc.Command{Path: unshare, Args: args, Env: vars, Netns: n.Netns}
		}),
		node: n, conf: conf, socket: filepath.Join(run, "ipamd.sock"),
	}
}

func (d *ipamd) ready(ctx context.Context) (*pods, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
	if err != nil {
		return nil, err
	}
	_ = c.Close()
	return newPods(d.node, d.conf, "/proc/"+strconv.Itoa(d.PID())+"/ns/mnt")
}
