package kube

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
)

// ServiceCIDRs are the addresses of Services, by family. The API server's own Service has the first one.
var ServiceCIDRs = [ipfamily.Number]netip.Prefix{
	ipfamily.IPv4: netip.MustParsePrefix("10.96.0.0/16"),
	ipfamily.IPv6: netip.MustParsePrefix("fd00:96::/112"),
}

// Etcd listens on sockets in the control plane's directory, which is the working directory of all programs, so it
// needs no ports.
const (
	etcdClients = "unix://etcd:0"
	etcdPeers   = "unix://peers:0"
)

// etcdData is etcd's data folder there.
const etcdData = "data"

func etcdArgs() []string {
	return []string{
		"--name=only",
		"--data-dir=" + etcdData,
		"--unsafe-no-fsync", // the data need not survive a crash of the machine
		"--listen-client-urls=" + etcdClients,
		"--advertise-client-urls=" + etcdClients,
		"--listen-peer-urls=" + etcdPeers,
		"--initial-advertise-peer-urls=" + etcdPeers,
		"--initial-cluster=only=" + etcdPeers,
		"--log-level=warn",
	}
}

func (o Options) apiServerArgs(port uint16) []string {
	args := []string{
		"--etcd-servers=" + etcdClients,
		"--bind-address=" + o.Address.String(),
		"--advertise-address=" + o.Address.String(),
		"--secure-port=" + strconv.Itoa(int(port)),
		"--tls-cert-file=" + serverCert,
		"--tls-private-key-file=" + serverKey,
		"--client-ca-file=" + caCert,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + tokenKey,
		"--service-account-signing-key-file=" + tokenKey,
		"--service-cluster-ip-range=" + o.serviceCIDRs(),
		"--allow-privileged",
		"--kubelet-preferred-address-types=InternalIP",
	}
	if o.Kubelets {
		args = append(args,
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--kubelet-client-certificate="+kubeletClientCert,
			"--kubelet-client-key="+kubeletClientKey,
			// Without kube-proxy, the API server calls webhooks by their endpoints.
			"--enable-aggregator-routing",
		)
	} else {
		args = append(args,
			"--authorization-mode=RBAC",
			"--endpoint-reconciler-type=none", // nothing uses the API's Service
		)
	}
	if !o.Controllers {
		// This plugin admits no pod without the default service account of its namespace, which
		// kube-controller-manager creates.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return append(args, o.APIServerArgs...)
}

func (o Options) serviceCIDRs() string {
	var cidrs []string
	for _, f := range o.Families.Families() {
		cidrs = append(cidrs, ServiceCIDRs[f].String())
	}
	return strings.Join(cidrs, ",")
}

func (o Options) controllerArgs() []string {
	return append([]string{
		"--kubeconfig=" + filepath.Join(o.Dir, adminKubeconfig),
		"--leader-elect=false",
		"--secure-port=0",
		"--allocate-node-cidrs=false",
		"--service-account-private-key-file=" + tokenKey,
		"--root-ca-file=" + caCert,
		"--use-service-account-credentials",
	}, o.ControllerArgs...)
}

func (o Options) schedulerArgs() []string {
	return []string{"--kubeconfig=" + filepath.Join(o.Dir, adminKubeconfig), "--leader-elect=false", "--secure-port=0"}
}

// The range of ports lies below the kernel's ephemeral ports (net.ipv4.ip_local_port_range), so that no program gets
// the API server's port while it is down.
const (
	firstPort = 20000
	lastPort  = 32000
)

// freePort finds a free port of addr by listening on it.
func freePort(netns string, addr netip.Addr) (port uint16, err error) {
	for range 100 {
		port = uint16(firstPort + rand.IntN(lastPort-firstPort))
		ln, listenErr := listen(netns, netip.AddrPortFrom(addr, port))
		if listenErr == nil {
			return port, ln.Close()
		}
		err = listenErr
	}
	return 0, err
}

func listen(netns string, at netip.AddrPort) (net.Listener, error) {
	if netns == "" {
		return net.Listen("tcp", at.String())
	}
	return ns.Listen(netns, at)
}
