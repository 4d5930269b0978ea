// Package ovs plugs ports directly into the integration bridge of Open vSwitch: the node's end of a
// veth is a port of the bridge. Its name is tap and the first 11 characters of the port ID. OVN,
// and Neutron's OVS agent with its firewall in Open vSwitch, expect this.
//
// Plugger contains the common parts of all kinds of ports in Open vSwitch, and Wiring those of one kind.
package ovs

import (
	"log/slog"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
)

var _ = failpoint.Register("plug.ovs.pod.before", "plug.ovs.pod.after", "plug.ovs.attach.before", "plug.ovs.attach.after",
	"plug.ovs.detach.before", "plug.ovs.detach.after")

// Options of New.
type Options struct {
	Netns string // path of the node's network namespace; empty: that of the calling thread
	// OVSDB is not closed by the Plugger. If it is nil, Plug fails, and Unplug removes links only.
	OVSDB   *ovsdb.Client
	Bridges []string     // allowed bridges; empty: br-int
	Turns   *plug.Turns  // shared by all Pluggers of the node, as they share link names; nil: not shared
	Sysctls string       // the sysctl folder; empty: /proc/sys
	Logger  *slog.Logger // nil: log nothing
}

// New makes a Plugger of ports of kind OVS. Close releases it.
func New(o Options) (*Plugger, error) { return NewWired(o, straight) }

// straight is the wiring with a veth to the pod only.
var straight = Wiring{
	Kind: plug.OVS, Failpoints: "plug.ovs.", Port: "tap", Links: []string{"tap"},
	Make: func(n *hostlink.Node, w plug.Want, pod *podif.Namespace) (hostlink.Link, error) {
		return n.ToPod(w, LinkName(w.Ref), pod)
	},
	Remove: func(n *hostlink.Node, r plug.Ref) error { return n.Remove(r, LinkName(r)) },
}

// LinkName is the name of the node's end of the veth to a pod.
func LinkName(r plug.Ref) string { return "tap" + r.Short() }
