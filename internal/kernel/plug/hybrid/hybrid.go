// Package hybrid plugs ports into the integration bridge of Open vSwitch through a Linux bridge for
// each port, for firewalls that filter there with iptables (Neutron's iptables_hybrid). Neutron's
// agent expects these names, which end with the first 11 characters of the port ID:
//
//	pod's interface = tap - qbr (a Linux bridge) - qvb = qvo - integration bridge
package hybrid

import (
	"errors"
	"net"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
)

var _ = failpoint.Register("plug.hybrid.bridge.after", "plug.hybrid.veth.after", "plug.hybrid.join.after",
	"plug.hybrid.pod.before", "plug.hybrid.pod.after", "plug.hybrid.attach.before", "plug.hybrid.attach.after",
	"plug.hybrid.detach.before", "plug.hybrid.detach.after", "plug.hybrid.links.after")

// New makes a Plugger of ports of kind OVSHybrid. Close releases it.
func New(o ovs.Options) (*ovs.Plugger, error) {
	return ovs.NewWired(o, ovs.Wiring{
		Kind: plug.OVSHybrid, Failpoints: "plug.hybrid.", Port: "qvo", Links: []string{"qbr", "qvb", "qvo"},
		Make: makeLinks, Check: checkLinks, Remove: removeLinks,
	})
}

// Names of a port's links on the node.
func tap(r plug.Ref) string { return ovs.LinkName(r) }
func qbr(r plug.Ref) string { return "qbr" + r.Short() }
func qvb(r plug.Ref) string { return "qvb" + r.Short() }
func qvo(r plug.Ref) string { return "qvo" + r.Short() }

// makeLinks creates all links, and sets up all but the one to the pod.
func makeLinks(node *hostlink.Node, w plug.Want, pod *podif.Namespace) (toPod hostlink.Link, err error) {
	var own, inner, outer hostlink.Link
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"bridge", func() (err error) { own, err = node.Bridge(w, qbr(w.Ref)); return err }},
		{"veth", func() (err error) { inner, outer, err = node.Between(w, qvb(w.Ref), qvo(w.Ref)); return err }},
		{"join", func() (err error) {
			if toPod, err = node.ToPod(w, tap(w.Ref), pod); err != nil {
				return err
			}
			return errors.Join(node.Join(inner, own), node.Join(toPod, own), node.Raise(outer, inner, own))
		}},
	} {
		err := step.do()
		if err == nil {
			err = failpoint.Hit("plug.hybrid." + step.name + ".after")
		}
		if err != nil {
			return hostlink.Link{}, err
		}
	}
	return toPod, nil
}

// removeLinks removes all links, the one to the pod first.
func removeLinks(node *hostlink.Node, r plug.Ref) error {
	err := node.Remove(r, tap(r))
	if err := failpoint.Hit("plug.hybrid.links.after"); err != nil {
		return err
	}
	return errors.Join(err, node.Remove(r, qvb(r), qvo(r), qbr(r)))
}

// checkLinks adds differences of the links between the pod's link and the integration bridge.
func checkLinks(node *hostlink.Node, w plug.Want, found *plug.Differences) error {
	own, err := node.Check(w.Ref, qbr(w.Ref), found)
	if err != nil {
		return err
	}
	for _, name := range []string{tap(w.Ref), qvb(w.Ref), qvo(w.Ref)} {
		l, err := node.Find(name)
		if name != tap(w.Ref) { // tap is checked together with the pod
			l, err = node.Check(w.Ref, name, found)
		}
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if name != qvo(w.Ref) && own != nil && l.Attrs().MasterIndex != own.Attrs().Index {
			found.Add("%s is not a port of bridge %s", name, qbr(w.Ref))
		}
		if name != tap(w.Ref) && l.Attrs().Flags&net.FlagUp == 0 {
			found.Add("%s is down", name)
		}
	}
	if own != nil && own.Attrs().Flags&net.FlagUp == 0 {
		found.Add("%s is down", qbr(w.Ref))
	}
	return nil
}
