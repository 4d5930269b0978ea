// Package ovs plugs ports straight into the integration bridge of Open vSwitch: a veth whose
// end on the node, tap and the first 11 characters of the port's ID, is a port of the
// bridge. So OVN wants it, and Neutron's OVS agent with its firewall in Open vSwitch.
//
// A Plugger does what all kinds of ports into Open vSwitch have in common; a Wiring is what
// is a kind's own.
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
	Netns string // path of the node's network namespace; empty: the calling thread's
	// OVSDB is not closed by the Plugger. Without one (nil) nothing can be plugged, and what
	// was plugged before loses its links.
	OVSDB   *ovsdb.Client
	Bridges []string     // that ports may be plugged into; empty: br-int
	Turns   *plug.Turns  // of all pluggers of the node, as they share names of links; nil: of this one
	Sysctls string       // the folder of the kernel's settings; empty: /proc/sys
	Logger  *slog.Logger // discards when nil
}

// New makes a Plugger of ports of kind OVS. Close releases it.
func New(o Options) (*Plugger, error) { return NewWired(o, straight) }

// straight is the link to the pod, and nothing else.
var straight = Wiring{
	Kind: plug.OVS, Failpoints: "plug.ovs.", Port: "tap", Links: []string{"tap"},
	Make: func(n *hostlink.Node, w plug.Want, pod *podif.Namespace) (hostlink.Link, error) {
		return n.ToPod(w, LinkName(w.Ref), pod)
	},
	Remove: func(n *hostlink.Node, r plug.Ref) error { return n.Remove(r, LinkName(r)) },
}

// LinkName is the name of the node's end of a port's link to its pod.
func LinkName(r plug.Ref) string { return "tap" + r.Short() }
