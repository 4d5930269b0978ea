package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/node"
)

// machine is a running instance, or a running node of a site.
type machine struct {
	*node.Node
	autostart bool          // berthd is started when the machine has booted
	joined    chan struct{} // closed once the API knows the node, and it the API; nil in node mode
	host      *host.Host    // what runs on it where it is a whole machine, else nil
	dark      bool          // its plug is pulled; guarded by Lab.following

	ports portcloud.Cloud // that it is a host of, in port mode, else nil
	ovsdb string          // then where its OVSDB is, for this process
}

// PowerOff pulls the machine's plug.
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
func (m *machine) Scrap() error {
	var err error
	if m.host != nil {
		err = m.host.Scrap()
	}
	return errors.Join(err, m.Node.Scrap())
}

var validNode = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$`)

// mayName refuses a name that no node can have, or that a node has.
func (l *Lab) mayName(name string) error {
	if !validNode.MatchString(name) {
		return fmt.Errorf("node name %q: want lower-case letters, digits and dashes, at most 42", name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nodes[name] != nil {
		return fmt.Errorf("there is a node %s already", name)
	}
	return nil
}

// IPv6Only reports whether an instance is in an IPv6-only subnet.
func IPv6Only(books vpc.Books, instanceID string) bool {
	i, _ := books.Instance(instanceID)
	s, ok := books.Subnet(i.SubnetID)
	return ok && s.IPv6Native()
}

// newMachine makes the machine of a namespace, and its Node where there is an API.
// Its instanceID is empty in a site.
func (l *Lab) newMachine(name, instanceID, netns string, object *corev1.Node) (*machine, error) {
	o := node.Options{
		Name: name, InstanceID: instanceID, Netns: netns,
		Dir: filepath.Join(l.Dir, "nodes", name), BinDir: l.BinDir,
		PodPrefix: fabric.Prefix(l.ID) + "pod-" + name + "-", Cluster: l.clusterName(),
		EC2URL: EC2URL, Args: slices.Concat(l.familyArgs(), l.DaemonArgs), Env: l.BerthdEnv, Log: l.Log,
	}
	if IPv6Only(l.Books(), instanceID) {
		o.EC2URL, o.Args = EC2URL6, append([]string{"--imds-endpoint-mode=ipv6"}, o.Args...)
	}
	if l.modelled() {
		l.Kube.equip(&o)
	}
	var joined portcloud.Joined
	if l.Ports != nil {
		var err error
		if joined, err = l.joinPorts(o); err != nil {
			return nil, err
		}
		o.Args = append(joinedArgs(joined), o.Args...)
		if l.hasBranches() {
			o.Args = append([]string{"--" + trunkSetting}, o.Args...)
		}
	}
	n, err := node.New(o)
	if err != nil {
		return nil, err
	}
	m := &machine{Node: n, ports: l.Ports, ovsdb: joined.OVSDB, autostart: !l.NoDaemons && l.Kubelets == nil}
	if l.Kubelets != nil {
		m.host, m.joined = l.newHost(m), make(chan struct{})
	}
	l.mu.Lock()
	l.nodes[name] = m
	l.mu.Unlock()
	if l.modelled() {
		l.Kube.join(m, object)
	}
	return m, nil
}

// boot is what happens once a machine has a network: an echo server answers on it,
// and berthd starts as a DaemonSet's pod would. It does so once the API knows the
// machine, for which nobody waits: the API server may be away.
func (l *Lab) boot(m *machine, progress string) error {
	if err := m.Serve(); err != nil {
		return err
	}
	l.Progress(progress)
	if m.host != nil {
		l.booting.Go(func() { l.bootHost(m) })
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
			l.note(m.Start())
		case <-l.ended:
		}
	}()
	return nil
}

// OwnAddrs are a node's own addresses: in a VPC those of its primary ENI.
func (l *Lab) OwnAddrs(n *node.Node) []netip.Addr {
	if l.Site != nil {
		own := l.Site.Addrs(n.Name)
		return []netip.Addr{own.IPv4, own.IPv6}
	}
	return l.Books().InstanceENIs(n.InstanceID)[0].Own()
}

// NodeAddrs are a node's own addresses of the families of which pods have some, IPv4 first.
func (l *Lab) NodeAddrs(n *node.Node) []netip.Addr {
	return slices.DeleteFunc(l.OwnAddrs(n), func(a netip.Addr) bool { return !l.PodFamilies().Has(ipfamily.Of(a)) })
}
