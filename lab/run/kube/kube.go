// Package kube runs a real Kubernetes control plane for tests and the demo:
// etcd, kube-apiserver and optionally kube-controller-manager and kube-scheduler, as child processes that die with
// their parent.
package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
)

// Options describe a control plane. Assets and Dir are required.
type Options struct {
	// Assets is the folder of the programs; hack/kubebox.sh prints one.
	Assets string
	// Dir is for certificates, data and logs. Data of an earlier control plane there is reused; its certificates and
	// tokens are not.
	Dir string
	// Address is where the API server listens, an address of the first of Families; the loopback address if not set.
	// The port is chosen.
	Address netip.Addr
	// Netns is the path of the network namespace in which the programs run; empty: that of the caller.
	Netns string

	// Controllers and Scheduler start these programs too. Without controllers, pods need no service account, and
	// nothing garbage-collects objects whose owner is deleted.
	Controllers, Scheduler bool

	// Kubelets means that real nodes join: the Node authorizer and NodeRestriction apply to kubelets, the API server
	// has credentials for kubelets, and pods reach it by the Service "kubernetes".
	Kubelets bool

	// Families are the IP families of Services. With both, a Service has an IPv4 address, and also an IPv6 address if
	// it requests one. IPv4 only if empty.
	Families ipfamily.Set

	// CRDs holds files with CustomResourceDefinitions (*.yaml, in any folder). They are usable when Start returns.
	CRDs fs.FS

	// Further arguments of the programs, which override those of this package.
	APIServerArgs, ControllerArgs []string
}

// Workloads are options for a control plane with controllers and a scheduler whose pods the caller runs without
// kubelets. The node lifecycle controller, which expects heartbeats, and the taint that it would remove are disabled.
// Pods need no service account.
func (o Options) Workloads() Options {
	o.Controllers, o.Scheduler, o.Families = true, true, ipfamily.Dual
	o.ControllerArgs = append(o.ControllerArgs, "--controllers=*,-node-lifecycle-controller")
	o.APIServerArgs = append(o.APIServerArgs, "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
	return o
}

// The programs. Their logs have the same names.
const (
	etcd        = "etcd"
	apiServer   = "kube-apiserver"
	controllers = "kube-controller-manager"
	scheduler   = "kube-scheduler"
)

// ControlPlane is a running control plane.
type ControlPlane struct {
	Options
	address netip.AddrPort
	ca      *authority
	admin   *rest.Config
	remote  bool // another process runs it

	kinds    atomic.Pointer[meta.RESTMapper] // cached kinds of the API
	restored bool                            // its data was restored from a snapshot, with the CRDs

	// APIServer is its process; KillAPIServer and StartAPIServer act on it.
	APIServer *proc.Process
	programs  *programs
}

// Start starts a control plane and returns once it can be used: the objects that the API server creates by itself
// exist and, with Controllers, namespace "default" admits pods. Without data in Dir it starts from a snapshot, which
// saves the time to create CRDs and RBAC objects. On failure nothing is left running.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	c := newControlPlane(o)
	if c.restored = c.restore(ctx); c.restored {
		soon, cancel := context.WithTimeout(ctx, restoredPatience)
		err = c.startAll(soon)
		cancel()
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil { // not caused by the snapshot
			return nil, errors.Join(fmt.Errorf("start a control plane in %s: %w", o.Dir, err), c.Stop())
		}
		if err := errors.Join(c.Stop(), c.forget()); err != nil {
			return nil, fmt.Errorf("start a control plane in %s: %w", o.Dir, err)
		}
		c = newControlPlane(o) // without the unusable snapshot
	}
	if err := c.startAll(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a control plane in %s: %w", o.Dir, err), c.Stop())
	}
	return c, nil
}

func newControlPlane(o Options) *ControlPlane {
	return &ControlPlane{Options: o, programs: &programs{}}
}

func (o Options) complete() (Options, error) {
	for program, wanted := range map[string]bool{etcd: true, apiServer: true, controllers: o.Controllers, scheduler: o.Scheduler} {
		if !wanted {
			continue
		}
		if _, err := os.Stat(filepath.Join(o.Assets, program)); err != nil {
			return o, fmt.Errorf("programs of a control plane: %w (hack/kubebox.sh builds them and prints their folder)", err)
		}
	}
	var err error
	if o.Assets, err = filepath.Abs(o.Assets); err != nil {
		return o, fmt.Errorf("folder of the programs: %w", err)
	}
	if o.Dir == "" {
		return o, errors.New("directory of a control plane: none given")
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, fmt.Errorf("directory of a control plane: %w", err)
	}
	first := o.Families.Families()[0]
	if !o.Address.IsValid() {
		o.Address = [ipfamily.Number]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}[first]
	}
	if ipfamily.Of(o.Address) != first { // the API server would exit with an error in its log
		return o, fmt.Errorf("address %s of the API server: expected an %s address, as the Services' addresses", o.Address, first)
	}
	return o, nil
}

func (c *ControlPlane) startAll(ctx context.Context) error {
	if err := c.startAPI(ctx); err != nil {
		return err
	}
	if c.Controllers {
		if _, err := c.programs.start(c.Options, controllers, c.controllerArgs()); err != nil {
			return err
		}
	}
	if c.Scheduler {
		if _, err := c.programs.start(c.Options, scheduler, c.schedulerArgs()); err != nil {
			return err
		}
	}
	return c.waitForController(ctx)
}

// startAPI starts etcd and the API server, and waits for the objects that the API server creates by itself.
func (c *ControlPlane) startAPI(ctx context.Context) error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	port, err := freePort(c.Netns, c.Address)
	if err != nil {
		return err
	}
	c.address = netip.AddrPortFrom(c.Address, port)
	if err := c.writeCredentials(); err != nil {
		return err
	}
	if _, err := c.programs.start(c.Options, etcd, etcdArgs()); err != nil {
		return err
	}
	if c.APIServer, err = c.programs.start(c.Options, apiServer, c.apiServerArgs(c.address.Port())); err != nil {
		return err
	}
	// The API server accepts CRDs before it is ready.
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.waitUntilReady(groupCtx) })
	if c.CRDs != nil {
		g.Go(func() error { return c.installCRDs(groupCtx, c.CRDs, c.restored) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return c.waitForBootstrap(ctx)
}

// URL returns the URL of the API server.
func (c *ControlPlane) URL() string { return c.admin.Host }

// StartAPIServer starts the API server again, on the same port and with the same data, and waits until it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	if c.remote {
		return errRemote
	}
	for tries := 1; ; tries++ {
		if err := c.APIServer.Start(); err != nil {
			return err
		}
		if err := c.waitUntilReady(ctx); err == nil || tries == starts || c.APIServer.Running() {
			return err
		}
	}
}

// starts limits the attempts to start an API server, which exits if it gets too little processor time.
const starts = 3

// KillAPIServer kills the API server: connections are reset, and the port refuses new ones. The other programs keep
// running.
func (c *ControlPlane) KillAPIServer() error {
	if c.remote {
		return errRemote
	}
	return c.APIServer.Kill()
}

// Stop kills every program and waits until all have exited. The directory stays. (Terminating an API server takes more
// than a minute.)
func (c *ControlPlane) Stop() error {
	// Etcd is killed last, so that the others log no errors.
	var errs []error
	for _, p := range slices.Backward(c.programs.list) {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// programs are the processes of a control plane, in start order.
type programs struct{ list []*proc.Process }

// start starts a program. Its log is named after it.
func (s *programs) start(c Options, program string, args []string) (*proc.Process, error) {
	p := proc.New(program, filepath.Join(c.Dir, program+".log"), func() proc.Command {
		return proc.Command{Path: filepath.Join(c.Assets, program), Args: args, Dir: c.Dir, Netns: c.Netns}
	})
	s.list = append(s.list, p)
	return p, p.Start()
}

// failed returns an error if a program has exited.
func (s *programs) failed() error {
	for _, p := range s.list {
		if err := p.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// until calls is until it returns nil, ctx ends or a program fails.
func (s *programs) until(ctx context.Context, what string, is func() error) error {
	err := poll.Retry(ctx, is, func(error) bool { return s.failed() == nil })
	if failed := s.failed(); err != nil && failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Endpoint returns the address at which the API server listens.
func (c *ControlPlane) Endpoint() netip.AddrPort { return c.address }

// Export writes to dir what Remote reads, for programs that reach the API server at another address and the same
// port. It returns the administrator's kubeconfig.
func (c *ControlPlane) Export(dir string, via netip.Addr) (kubeconfig string, err error) {
	cfg := c.Config()
	cfg.Host = "https://" + netip.AddrPortFrom(via, c.address.Port()).String()
	cfg.ServerName = c.address.Addr().String() // the name in the certificate
	kubeconfig = filepath.Join(dir, adminKubeconfig)
	return kubeconfig, WriteKubeconfig(kubeconfig, cfg)
}

// errRemote is the error of methods that only the process that started the control plane can use.
var errRemote = errors.New("the control plane belongs to another process")

// Remote returns a control plane that another process runs and has exported to dir, such as the host of a virtual machine.
// It issues no certificates, and cannot be started or killed; Stop does nothing.
func Remote(dir string) (*ControlPlane, error) {
	c := newControlPlane(Options{Dir: dir})
	c.remote = true
	cfg, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the exported control plane: %w", err)
	}
	cfg.QPS = -1
	if c.address, err = netip.ParseAddrPort(strings.TrimPrefix(cfg.Host, "https://")); err != nil {
		return nil, fmt.Errorf("read the exported control plane: %w", err)
	}
	c.admin, c.ca = cfg, &authority{pem: cfg.CAData}
	return c, nil
}

// RemoteDir is the name of an environment variable with the folder for Remote.
const RemoteDir = "BERTH_CONTROL_PLANE"

// In returns the control plane for programs in a network namespace, at the address of a forwarder there.
func (c *ControlPlane) In(netns string, address netip.AddrPort) *ControlPlane {
	other := &ControlPlane{Options: c.Options, address: address, ca: c.ca, remote: c.remote, restored: c.restored, APIServer: c.APIServer, programs: c.programs}
	other.Netns = netns
	other.admin = c.Config()
	other.admin.Host = "https://" + address.String()
	other.admin.Dial = dialer(netns, address)
	return other
}
