package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
)

// Endpoint is where the API server listens.
func (c *ControlPlane) Endpoint() netip.AddrPort { return c.address }

// Export writes what Remote reads into dir, for programs that reach the API server by
// another address, at the same port. It returns the file, which is an administrator's
// kubeconfig.
func (c *ControlPlane) Export(dir string, via netip.Addr) (kubeconfig string, err error) {
	cfg := c.Config()
	cfg.Host = "https://" + netip.AddrPortFrom(via, c.address.Port()).String()
	cfg.ServerName = c.address.Addr().String() // that of the certificate
	kubeconfig = filepath.Join(dir, adminKubeconfig)
	return kubeconfig, WriteKubeconfig(kubeconfig, cfg)
}

// errRemote is for what only the process can do that started the control plane.
var errRemote = errors.New("the control plane is another process's")

// Remote is a control plane that another process runs, and wrote down in dir (Export),
// such as one of the host for a virtual machine. It has users with tokens, but none with
// certificates, and cannot be started or killed; Stop leaves it alone.
func Remote(dir string) (*ControlPlane, error) {
	c := &ControlPlane{Options: Options{Dir: dir}, remote: true}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read how to reach the control plane: %w", err)
	}
	cfg.QPS = -1
	if c.address, err = netip.ParseAddrPort(strings.TrimPrefix(cfg.Host, "https://")); err != nil {
		return nil, fmt.Errorf("read how to reach the control plane: %w", err)
	}
	c.admin, c.ca = cfg, &authority{pem: cfg.CAData}
	return c, nil
}

// RemoteDir names an environment variable with a folder for Remote.
const RemoteDir = "BERTH_CONTROL_PLANE"

// In is the control plane as programs in a network namespace reach it, by an address there
// at which a forwarder carries their connections to it.
func (c *ControlPlane) In(netns string, address netip.AddrPort) *ControlPlane {
	other := &ControlPlane{Options: c.Options, address: address, ca: c.ca, remote: c.remote, restored: c.restored, APIServer: c.APIServer, programs: c.programs}
	other.Netns = netns
	other.admin = c.Config()
	other.admin.Host = "https://" + address.String()
	other.admin.Dial = other.dial
	return other
}
