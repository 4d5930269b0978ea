package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/vpccni"
)

// machines are the running instances of a lab, or the running nodes of its site.
type machines struct {
	lab     *Lab
	givenUp chan struct{} // closed when Start's caller gives up
	kubeUp  chan struct{} // closed when kubelets may join
	booting sync.WaitGroup

	mu     sync.Mutex // guards byName; never held across I/O
	byName map[string]*machine
}

func newMachines(l *Lab) *machines {
	return &machines{lab: l, givenUp: make(chan struct{}), kubeUp: make(chan struct{}), byName: map[string]*machine{}}
}

// all returns all machines in no particular order.
func (s *machines) all() []*machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byName))
}

// nodes returns all nodes sorted by name.
func (s *machines) nodes() []*node.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*node.Node
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		out = append(out, s.byName[name].Node)
	}
	return out
}

// get returns a machine by name.
func (s *machines) get(name string) (*machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.byName[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("no node %q; the nodes are %v", name, slices.Sorted(maps.Keys(s.byName)))
}

// whole returns a machine of a lab with kubelets.
func (s *machines) whole(name string) (*machine, error) {
	if m, err := s.get(name); err == nil && m.host != nil {
		return m, nil
	}
	return nil, fmt.Errorf("machine %q does not exist, or the lab has no kubelets", name)
}

// ofInstance returns the machine of a running instance, or nil if it does not run.
func (s *machines) ofInstance(id string) *machine {
	for _, m := range s.all() {
		if m.InstanceID == id {
			return m
		}
	}
	return nil
}

// remove removes and returns the machine with a name, or nil.
func (s *machines) remove(name string) *machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.byName[name]
	delete(s.byName, name)
	return m
}

// mayName rejects names that are invalid or in use.
func (s *machines) mayName(name string) error {
	if !validNode.MatchString(name) {
		return fmt.Errorf("node name %q: want lower-case letters, digits and dashes, at most 42", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[name] != nil {
		return fmt.Errorf("node %s already exists", name)
	}
	return nil
}

// create creates the machine of a namespace, and its Node if there is an API. instanceID is empty in a site.
func (s *machines) create(name, instanceID, netns string, object *corev1.Node) (*machine, error) {
	o := node.Options{
		Name: name, InstanceID: instanceID, Netns: netns,
		Dir: filepath.Join(s.lab.Dir, "nodes", name), BinDir: s.lab.BinDir,
		PodPrefix: fabric.Prefix(s.lab.ID) + "pod-" + name + "-", Cluster: s.lab.clusterName(),
		EC2URL: EC2URL, Args: slices.Concat(s.lab.familyArgs(), s.lab.DaemonArgs), Env: s.lab.BerthdEnv, Log: s.lab.Log,
	}
	if IPv6Only(s.lab.Snapshot(), instanceID) {
		o.EC2URL, o.Args = EC2URL6, append([]string{"--imds-endpoint-mode=ipv6"}, o.Args...)
	}
	if s.lab.modelled() {
		s.lab.Kube.nodes.equip(&o)
	}
	var joined portcloud.Joined
	if s.lab.Ports != nil {
		var err error
		if joined, err = s.joinPorts(o); err != nil {
			return nil, err
		}
		o.Args = append(joinedArgs(joined), o.Args...)
		if hasBranches(s.lab) {
			o.Args = append([]string{"--" + trunkSetting}, o.Args...)
		}
	}
	n, err := node.New(o)
	if err != nil {
		return nil, err
	}
	m := &machine{Node: n, ports: s.lab.Ports, ovsdb: joined.OVSDB, autostart: !s.lab.NoDaemons && s.lab.Kubelets == nil}
	if s.lab.Kubelets != nil {
		m.host, m.joined = s.newHost(m), make(chan struct{})
	}
	s.mu.Lock()
	s.byName[name] = m
	s.mu.Unlock()
	if s.lab.modelled() {
		s.lab.Kube.nodes.join(m, object)
	}
	return m, nil
}

// boot starts the programs of a machine with a network: an echo server and, once the API has its Node, berthd. It does
// not wait for the API server.
func (s *machines) boot(m *machine, progress string) error {
	if err := m.Serve(); err != nil {
		return err
	}
	s.lab.Progress(progress)
	if m.host != nil {
		s.booting.Go(func() { s.bootHost(m) })
		return nil
	}
	if !m.autostart {
		return nil
	}
	m.autostart = false
	if m.joined == nil {
		return m.Start()
	}
	go func() {
		select {
		case <-m.joined:
			s.lab.note(m.Start())
		case <-s.lab.ended:
		}
	}()
	return nil
}

// newHost creates the machine that runs on a node's network.
func (s *machines) newHost(m *machine) *host.Host {
	folders := map[string]string{}
	if socket, ok := strings.CutPrefix(m.ovsdb, "unix:"); ok {
		folders[ovsDir] = filepath.Dir(socket)
	}
	plugins := "/usr/lib/cni"
	if s.lab.Kubelets.NoCNIPlugins {
		plugins = ""
	}
	return host.New(host.Options{
		Name: m.Name, Netns: m.Netns, Group: cgroup.Group(fabric.Prefix(s.lab.ID) + m.Name),
		Disk: filepath.Join(disksDir, s.lab.ID, m.Name), Logs: filepath.Join(m.Dir, "log"),
		Kubernetes: s.lab.KubeAssets, Runtime: s.lab.Kubelets.runtime, Images: s.lab.Kubelets.images, CNIPlugins: plugins,
		Folders: folders,
	})
}

// bootHost powers a machine on, and makes it a node once there is an API server.
func (s *machines) bootHost(m *machine) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.lab.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer close(m.joined)
	if err := m.host.Boot(ctx); err != nil {
		s.lab.note(err)
		return
	}
	select {
	case <-s.kubeUp:
	case <-ctx.Done():
		return
	}
	s.lab.note(s.joinHost(m))
	s.lab.Progress("node " + m.Name + " has booted: containerd " + s.lab.Kubelets.runtime.Version + ", kubelet, kube-proxy (" + string(s.lab.Kubelets.Proxy) + ")")
}

// joinHost makes a running machine a node of the cluster.
func (s *machines) joinHost(m *machine) error {
	if s.lab.Kube == nil {
		return nil // the control plane did not start, which is reported elsewhere
	}
	c := host.Cluster{
		ClientCA: s.lab.Kube.CA(), DNS: s.lab.clusterDNS(), ProxyMode: s.lab.Kubelets.Proxy, AllLocal: s.lab.Kubelets.AllLocal, MaxPods: s.lab.Kubelets.MaxPods,
	}
	var err error
	if c.Kubelet, err = s.lab.Kube.ConfigFor("system:node:"+m.Name, "system:nodes"); err != nil {
		return err
	}
	if c.Proxy, err = s.lab.Kube.ConfigFor("system:kube-proxy"); err != nil {
		return err
	}
	c.Addresses = s.lab.NodeAddrs(m.Node)
	if s.lab.Site == nil {
		snapshot := s.lab.Cloud.Snapshot()
		i, _ := snapshot.Instance(m.InstanceID)
		object := nodeOf(m.Name, i)
		if c.MaxPods == 0 {
			c.MaxPods = s.lab.maxPods(i.Type)
		}
		delete(object.Labels, corev1.LabelHostname) // for the kubelet's own
		c.Labels, c.ProviderID = object.Labels, object.Spec.ProviderID
	}
	return m.host.Join(c)
}

// patiently returns a context that ends after a time, with the lab, or when the caller of Start gives up.
func (s *machines) patiently(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.givenUp:
		case <-s.lab.ended:
		}
		cancel()
	}()
	return ctx, cancel
}

// joinPorts makes a machine a compute host, and returns the settings of its daemon.
func (s *machines) joinPorts(o node.Options) (portcloud.Joined, error) {
	ctx, cancel := s.patiently(joinTimeout)
	defer cancel()
	joined, err := s.lab.Ports.Join(ctx, portcloud.Host{
		Name: o.Name, Netns: o.Netns, Dir: filepath.Join(o.Dir, "run", "openvswitch"), State: filepath.Join(o.Dir, "var", "lib", "openvswitch"),
		Pods: o.PodPrefix,
	})
	if err != nil {
		return portcloud.Joined{}, fmt.Errorf("make %s a compute host: %w", o.Name, err)
	}
	return joined, nil
}

// close powers all machines off, and removes the disks of whole ones.
func (s *machines) close() error {
	s.booting.Wait()
	var off errgroup.Group
	errs := []error{s.killFormer()}
	for _, m := range s.all() {
		off.Go(func() error {
			err := errors.Join(m.PowerOff(), m.removeHostDisk())
			s.mu.Lock()
			defer s.mu.Unlock()
			errs = append(errs, err)
			return nil
		})
	}
	_ = off.Wait()
	return errors.Join(errs...)
}

// machine is a running instance, or a running node of a site.
type machine struct {
	*node.Node
	autostart bool          // start berthd once the machine has booted
	joined    chan struct{} // closed once the node has joined the API; nil in node mode
	host      *host.Host    // containerd, kubelet and kube-proxy; nil without kubelets
	dark      bool          // powered off; guarded by follower.following

	ports portcloud.Cloud // cloud of which it is a compute host in port mode, or nil
	ovsdb string          // endpoint of its OVSDB in port mode, for this process

	former *vpccni.Daemon // daemon of another network; guarded by machines.mu
}

// PowerOff powers the machine off.
func (m *machine) PowerOff() error {
	var err error
	if m.host != nil {
		err = m.host.Kill()
	}
	if m.ports != nil {
		err = errors.Join(err, m.ports.Leave(m.Name))
	}
	return errors.Join(err, m.Node.PowerOff())
}

// Scrap removes its disk.
func (m *machine) Scrap() error { return errors.Join(m.removeHostDisk(), m.Node.RemoveDisk()) }

// removeHostDisk removes the disk of a whole machine.
func (m *machine) removeHostDisk() error {
	if m.host == nil {
		return nil
	}
	return m.host.RemoveDisk()
}

var validNode = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$`)

// IPv6Only reports whether an instance is in an IPv6-only subnet.
func IPv6Only(snapshot vpc.Snapshot, instanceID string) bool {
	i, _ := snapshot.Instance(instanceID)
	s, ok := snapshot.Subnet(i.SubnetID)
	return ok && s.IPv6Native()
}
