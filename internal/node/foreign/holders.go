package foreign

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/kernel/datapath"
)

// Trust in evidence: only root on the node can create routes in the node's namespace and write another daemon's state, so
// both are trusted. A pod controls its own namespace and could claim every address of the node there, so addresses in
// namespaces only confirm the other daemon's state.

// Holder is software other than Berth that has an address on the node.
type Holder struct {
	Addr   netip.Addr
	System System
	Pod    string // NAMESPACE/NAME, if known
	Link   string // link on the node, if known
	Table  int    // table of the route through Link
}

// String returns a text such as "10.0.0.7 (Amazon VPC CNI, pod default/web-0)".
func (h Holder) String() string {
	where := ""
	switch {
	case h.Pod != "":
		where = ", pod " + h.Pod
	case h.Link != "":
		where = fmt.Sprintf(", link %s, table %d", h.Link, h.Table)
	}
	return fmt.Sprintf("%s (%s%s)", h.Addr, h.System, where)
}

// Evidence is a snapshot of a node.
type Evidence struct {
	Now        time.Time
	Routes     []datapath.ForeignRoute
	Checkpoint Checkpoint      // of the Amazon VPC CNI
	Answers    map[System]bool // daemons that run
	// InPods reports whether a network namespace of other software has an address.
	InPods func(netip.Addr) bool
	// Adopted reports whether Berth has taken over a container that is still in the other daemon's state.
	Adopted func(containerID string) bool
}

// settling is the maximum time that the Amazon VPC CNI takes from allocating an address to creating its route.
const settling = 5 * time.Minute

// Holders returns one holder for each held address, ordered by address.
func Holders(e Evidence) (list []Holder) {
	routed := map[netip.Addr]int{} // index in list
	for _, r := range e.Routes {
		if _, ok := routed[r.Addr]; !ok {
			routed[r.Addr] = len(list)
			list = append(list, Holder{Addr: r.Addr, System: systemOf(r), Link: r.Link, Table: r.Table})
		}
	}
	for _, a := range e.Checkpoint.Allocations {
		if e.Adopted(a.ContainerID) {
			continue
		}
		for _, addr := range a.Addrs() {
			if i, ok := routed[addr]; ok {
				list[i].System, list[i].Pod = AmazonVPCCNI, a.Pod()
				continue
			}
			age := e.Now.Sub(a.At())
			if e.Answers[AmazonVPCCNI] || age < settling && age > -settling || e.InPods(addr) {
				list = append(list, Holder{Addr: addr, System: AmazonVPCCNI, Pod: a.Pod()})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Holder) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(list, func(a, b Holder) bool { return a.Addr == b.Addr })
}

// System is a pod network other than Berth.
type System string

// The systems that Berth distinguishes.
const (
	AmazonVPCCNI System = "Amazon VPC CNI"
	Coil         System = "Coil"
	Cilium       System = "Cilium"
	Calico       System = "Calico"
	Other        System = "other software"
)

// Label returns the system's name in metrics.
func (s System) Label() string { return strings.ReplaceAll(strings.ToLower(string(s)), " ", "-") }

// Systems lists all systems.
func Systems() []System { return []System{AmazonVPCCNI, Coil, Cilium, Calico, Other} }

// systemOf derives the owner of a route from the name of its link.
func systemOf(r datapath.ForeignRoute) System {
	if _, ok := ParseCoilAlias(r.Alias); ok {
		return Coil
	}
	for prefix, system := range map[string]System{"eni": AmazonVPCCNI, "lxc": Cilium, "cali": Calico} {
		if strings.HasPrefix(r.Link, prefix) {
			return system
		}
	}
	return Other
}

// pluginSystem returns the system of a CNI plugin. An unknown plugin is a system of its own.
func pluginSystem(plugin string) System {
	return cmp.Or(map[string]System{"aws-cni": AmazonVPCCNI, "coil": Coil, "cilium-cni": Cilium, "calico": Calico}[plugin], System("plugin "+plugin))
}
