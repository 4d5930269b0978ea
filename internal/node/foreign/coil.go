package foreign

import (
	"net/netip"
	"slices"
	"strings"
)

// Defaults of Coil v2's kernel state; each is a flag of coild.
const (
	CoilPodTable     = 116 // a route to each pod, through its host-side veth
	CoilExportTable  = 119 // a route to each block, for the routing daemon
	CoilRulePriority = 2000
	CoilProtocol     = 30
)

// CoilAlias is the alias of a host-side veth of Coil v2.
type CoilAlias struct {
	Pool      string // empty if Coil is chained, without addresses
	Container string // the container's ID, or the pod's UID for a chained interface
	IfName    string // name in the pod
}

// String returns the alias as Coil writes it.
func (a CoilAlias) String() string { return coilPrefix + a.Pool + ":" + a.Container + ":" + a.IfName }

const coilPrefix = "COIL:"

// ParseCoilAlias reads the alias of a link. ok is false if it is not one of Coil's.
func ParseCoilAlias(alias string) (a CoilAlias, ok bool) {
	rest, ok := strings.CutPrefix(alias, coilPrefix)
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return CoilAlias{}, false
	}
	return CoilAlias{parts[0], parts[1], parts[2]}, true
}

// Link is a link of the node's namespace.
type Link struct {
	Index int
	Name  string
	Alias string
}

// Route is a route of the node to a single address through a link, without a gateway. Berth's own routes are excluded.
type Route struct {
	Addr     netip.Addr
	Table    int
	Protocol int
	Link     int // index
}

// CoilPod is an interface of a pod that Coil v2 created.
type CoilPod struct {
	CoilAlias
	Link  Link
	Addrs []netip.Addr // from the routes of a table, sorted; none if the routes are gone
}

// CoilPods returns the interfaces whose links have an alias of Coil, by link name. Their addresses are those of the routes in
// a table, CoilPodTable unless coild is configured otherwise.
func CoilPods(links []Link, routes []Route, table int) (pods []CoilPod) {
	addrs := map[int][]netip.Addr{}
	for _, r := range routes {
		if r.Table == table {
			addrs[r.Link] = append(addrs[r.Link], r.Addr)
		}
	}
	for _, l := range links {
		if a, ok := ParseCoilAlias(l.Alias); ok {
			slices.SortFunc(addrs[l.Index], netip.Addr.Compare)
			pods = append(pods, CoilPod{a, l, addrs[l.Index]})
		}
	}
	slices.SortFunc(pods, func(a, b CoilPod) int { return strings.Compare(a.Link.Name, b.Link.Name) })
	return pods
}
