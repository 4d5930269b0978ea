// Package vpccni runs the unmodified Amazon VPC CNI on nodes of a lab: its daemon, ipamd, as a process, and its plugin
// through the node's CNI configuration. It needs a Kubernetes API.
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
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/proc"
)

// The Amazon VPC CNI's programs, by the names in its module.
const (
	DaemonProgram = "aws-k8s-agent"
	PluginProgram = "routed-eni-cni-plugin"
)

const (
	// Plugin is the file name under which the image installs the plugin.
	Plugin = "aws-cni"
	// Conflist is the file name of the CNI configuration.
	Conflist = "10-aws.conflist"
	// Network is its name.
	Network = "aws-cni"
)

// mountPoint is the directory of the socket and the records of ipamd. It cannot be configured, so the daemon has a mount
// namespace with a separate directory there.
const mountPoint = "/run/aws-node"

// users counts the daemons of this process that are not closed. Removing the mount point would unmount it for all of them.
var users struct {
	sync.Mutex
	n int
}

// Options describe the Amazon VPC CNI of one node.
type Options struct {
	Node       *node.Node
	Programs   string // directory of the programs
	Kubeconfig string
	EC2URL     string
	Env        map[string]string // further settings of the aws-node DaemonSet
	Chain      []string          // plugins that run after its own, such as portmap
}

// Daemon is ipamd on one node.
type Daemon struct {
	*proc.Process
	Options
}

// New installs the plugin on a node, as the image's entry point does, and prepares the daemon with the settings of the
// published manifest, without the network policy agent.
func New(o Options) (*Daemon, error) {
	d := &Daemon{Options: o}
	users.Lock()
	users.n++
	users.Unlock()
	for _, dir := range []string{d.RunDir(), mountPoint} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join(o.Programs, PluginProgram), filepath.Join(o.Node.CNIBinDir(), Plugin)); err != nil {
		return nil, err
	}
	if err := errors.Join(d.Configure(), ns.Do(o.Node.Netns, initialize)); err != nil {
		return nil, err
	}
	o.Node.RunIn(Plugin, d.mounts)
	d.Process = proc.New("ipamd of "+o.Node.Name, filepath.Join(d.logs(), "ipamd.out"), func() proc.Command {
		// Mount the socket's directory, then execute the daemon.
		args := []string{
			"--mount", "--propagation=private", "sh", "-c", `umount -l /run/netns 2>/dev/null; mount --bind "$0" ` + mountPoint + ` && exec "$1"`,
			d.RunDir(), filepath.Join(o.Programs, DaemonProgram),
		}
		return proc.Command{Path: unshare, Args: args, Env: d.environment(), Netns: o.Node.Netns}
	})
	return d, nil
}

// initialize sets sysctls of the node's network namespace, the calling thread's: forwarding, as container runtimes and
// kubelets do, and loose reverse path filtering on the primary link, as the init container does.
func initialize() error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	i := slices.IndexFunc(routes, func(r netlink.Route) bool { return rtnl.RouteDst(r).Bits() == 0 })
	if i < 0 {
		return errors.New("the node has no default route")
	}
	link, err := netlink.LinkByIndex(routes[i].LinkIndex)
	if err != nil {
		return fmt.Errorf("find the primary link: %w", err)
	}
	var errs []error
	primary := "conf/" + link.Attrs().Name
	for _, s := range [][2]string{
		{"ipv4/ip_forward", "1"}, {"ipv4/" + primary + "/rp_filter", "2"},
		{"ipv6/" + primary + "/accept_ra", "2"}, {"ipv6/conf/all/forwarding", "1"}, // in this order: forwarding would end the default route
	} {
		errs = append(errs, os.WriteFile(filepath.Join("/proc/sys/net", s[0]), []byte(s[1]), 0))
	}
	return errors.Join(errs...)
}

// Close kills the daemon. The last one of this process removes the directory that all need outside of their labs.
func (d *Daemon) Close() error {
	err := d.Kill()
	users.Lock()
	defer users.Unlock()
	if users.n--; users.n == 0 {
		_ = os.Remove(mountPoint)
	}
	return err
}

// RunDir is the node's directory of ipamd's socket and checkpoint, which ipamd sees as /var/run/aws-node.
func (d *Daemon) RunDir() string { return filepath.Join(d.Node.Dir, "run", "aws-node") }

func (d *Daemon) logs() string { return filepath.Dir(d.Node.LogFile()) }

// Configuration is the path of the CNI configuration.
func (d *Daemon) Configuration() string { return filepath.Join(d.Node.ConfDir(), Conflist) }

// Configure writes the CNI configuration, as the container aws-node does when it starts.
func (d *Daemon) Configure() error {
	var chain string
	for _, plugin := range d.Chain {
		chain += fmt.Sprintf(`,{"type":%q,"capabilities":{"portMappings":true},"snat":true}`, plugin)
	}
	list := fmt.Sprintf(`{"cniVersion":"0.4.0","name":%q,"disableCheck":true,"plugins":[{"name":"aws-cni","type":%q,
		"vethPrefix":"eni","mtu":"9001","podSGEnforcingMode":"strict","pluginLogFile":%q,"pluginLogLevel":"DEBUG"}%s]}`,
		Network, Plugin, filepath.Join(d.logs(), "plugin.log"), chain)
	return os.WriteFile(d.Configuration(), []byte(list), 0o644)
}

func (d *Daemon) environment() []string {
	vars := []string{
		"MY_NODE_NAME=" + d.Node.Name,
		"KUBECONFIG=" + d.Kubeconfig,
		"AWS_EC2_ENDPOINT=" + d.EC2URL,
		"CLUSTER_NAME=" + d.Node.Cluster,
		"AWS_VPC_K8S_CNI_LOG_FILE=" + filepath.Join(d.logs(), "ipamd.log"),
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
	for k, v := range d.Env {
		vars = slices.DeleteFunc(vars, func(one string) bool { return strings.HasPrefix(one, k+"=") })
		vars = append(vars, k+"="+v)
	}
	slices.Sort(vars)
	return vars
}

// mounts is the path of the daemon's mount namespace, in which the plugin finds the socket; empty while it does not run.
func (d *Daemon) mounts() string {
	if pid := d.PID(); pid != 0 {
		return "/proc/" + strconv.Itoa(pid) + "/ns/mnt"
	}
	return ""
}

// Ready returns an error while the daemon does not accept calls of its plugin.
func (d *Daemon) Ready(ctx context.Context) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(d.RunDir(), "ipamd.sock"))
	if err != nil {
		return err
	}
	return c.Close()
}
