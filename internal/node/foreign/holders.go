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

// Which evidence counts. Only root on the node makes routes in the node's namespace, and writes what another daemon
// remembers: both count. What is inside a pod's namespace is up to the pod, which could claim every address of the node:
// it only confirms what the other daemon remembers.

// Holder is somebody other than Berth who has an address on the node.
type Holder struct {
	Addr   netip.Addr
	System System
	Pod    string // NAMESPACE/NAME, if known
	Link   string // of the node, if known
	Table  int    // of the route by Link
}

// String is such as "10.0.0.7 (Amazon VPC CNI, pod default/web-0)".
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

// Evidence is what was read of a node at one moment.
type Evidence struct {
	Now        time.Time
	Routes     []datapath.ForeignRoute
	Checkpoint Checkpoint      // of the Amazon VPC CNI
	Answers    map[System]bool // daemons that run
	// InPods reports whether a network namespace of other software has an address.
	InPods func(netip.Addr) bool
	// Adopted reports whether Berth has taken over a container, which the other daemon still remembers.
	Adopted func(containerID string) bool
}

// settling is how long the Amazon VPC CNI may take from the allocation of an address until the node has the route to it.
const settling = 5 * time.Minute

// Holders returns who holds addresses, by address, one holder each.
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

// The systems that are told apart.
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

// systemOf tells by the names of links whose a route is.
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

// pluginSystem tells whose a CNI plugin is. A plugin of no known system is a system of that name.
func pluginSystem(plugin string) System {
	return cmp.Or(map[string]System{"aws-cni": AmazonVPCCNI, "coil": Coil, "cilium-cni": Cilium, "calico": Calico}[plugin], System("plugin "+plugin))
}
