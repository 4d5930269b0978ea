package coil

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/attachment"
)

// The steps of a migration on a node.
const (
	stepAdopt  = "adopt"
	stepEgress = "egress"
	stepFinish = "finish"
)

// decide returns the plan for a node.
func (s state) decide(from, network string) migrate.Plan {
	p := migrate.Plan{From: from, Pods: s.fates()}
	p.Found = []string{
		fmt.Sprintf("%d pods with addresses of Coil, %d of them adopted", len(s.pods)-s.chainedPods(), migrate.Count(p.Pods, migrate.Adopted)),
		fmt.Sprintf("%d blocks that Coil announces: %v", len(s.exports), s.exports),
	}
	if s.conf != "" {
		p.Found = append(p.Found, fmt.Sprintf("CNI configuration %s of network %s", s.conf, s.network))
	}
	left := migrate.Count(p.Pods, migrate.Adopt)
	clients, inForce := s.clients()
	if clients > 0 {
		p.Found = append(p.Found, fmt.Sprintf("%d clients of Coil's Egresses, %d of them with tunnels to Coil's gateways in use", clients, inForce))
	}
	p.Steps = []migrate.Step{
		{Name: stepAdopt, Done: left == 0, What: fmt.Sprintf("adopt %d pods while they run; aliases, routes of Coil's tables and gateways stay, so that rollback can give the pods back", left)},
		{Name: stepEgress, Done: inForce == 0, What: fmt.Sprintf("berthd, once it runs, gives %d clients tunnels to Berth's gateways; their TCP connections through Coil's gateways are reset then, since their NAT state is there, and all other connections go on; Coil's tunnels stay, unused, so that rollback can restore them", clients)},
		{Name: stepFinish, Done: s.finished(), Final: true, What: "remove Coil's rule, and then the alias, the routes and the gateway of each pod: from the first of them on, Coil treats the addresses as free"},
	}
	if clients == 0 {
		p.Steps = slices.DeleteFunc(p.Steps, func(step migrate.Step) bool { return step.Name == stepEgress })
	}
	p.Obstacles = s.obstacles(network)
	return p.Complete()
}

// fates returns the fate of each pod.
func (s state) fates() (list []migrate.Pod) {
	for _, p := range s.pods {
		if p.chained() {
			continue // it keeps the interface that another CNI plugin created
		}
		m := migrate.Pod{
			Namespace: p.Pod.Namespace, Name: p.Pod.Name, ContainerID: p.Container, Interface: p.IfName,
			Addresses: p.Addrs, HostLink: p.Link.Name, Uplink: p.Pool,
		}
		if m.Fate, m.Why = p.fate(); p.adopted() {
			m.Addresses = p.Recorded.Lease.Addrs()
		}
		list = append(list, m)
	}
	for _, r := range s.records {
		m := migrate.Pod{
			Namespace: r.Pod.Namespace, Name: r.Pod.Name, ContainerID: r.Key.ContainerID, Interface: r.Key.IfName,
			Addresses: r.Lease.Addrs(), HostLink: r.HostLink, Uplink: r.Lease.Pool, Fate: migrate.Berth,
		}
		if r.Adopted != nil {
			m.Fate = migrate.Adopted
		}
		list = append(list, m)
	}
	return list
}

// fate returns the fate of a pod, and the reason if it must be replaced.
func (p pod) fate() (migrate.Fate, string) {
	switch {
	case p.adopted():
		return migrate.Adopted, ""
	case p.Link.Index == 0:
		return migrate.Gone, ""
	case p.Container == "":
		return migrate.Replace, "neither Coil nor the container runtime knows the ID of its container"
	case p.Egress.client && p.Pod.Name == "":
		return migrate.Replace, "it uses an Egress of Coil, and its name, by which berthd finds its Egress, is not known to the container runtime"
	case len(p.Addrs) == 0:
		return migrate.Replace, "no route of Coil leads to it, so its address is unknown"
	case !oneOfEach(p.Addrs):
		return migrate.Replace, "several addresses of one family lead to it"
	case p.Netns.Path == "":
		return migrate.Replace, "its network namespace has no path"
	}
	return migrate.Adopt, ""
}

// oneOfEach reports whether there is at most one address of each family.
func oneOfEach(addrs []netip.Addr) bool {
	return len(addrs) == 1 || len(addrs) == 2 && addrs[0].Is4() != addrs[1].Is4()
}

// lease returns a pod's addresses as a lease.
func (p pod) lease() (l attachment.Lease) {
	l.Pool = p.Pool
	for _, a := range p.Addrs {
		if a.Is4() {
			l.IPv4 = a
		} else {
			l.IPv6 = a
		}
	}
	return l
}

// finished reports whether nothing of Coil is left.
func (s state) finished() bool {
	left := slices.ContainsFunc(s.pods, func(p pod) bool { return !p.chained() && (p.Link.Alias != "" || len(p.Addrs) > 0) })
	clients, _ := s.clients()
	return !left && clients == 0 && len(s.rules) == 0 && len(s.exports) == 0 && s.conf == ""
}

// obstacles returns the obstacles to Apply.
func (s state) obstacles(network string) (list []migrate.Obstacle) {
	if s.daemon {
		list = append(list, migrate.Obstacle{
			What:   errCoildRuns.Error(),
			Remedy: "before apply, keep Coil's DaemonSet off this node, and wait until its pod is gone; kubectl berth migrate coil apply does so",
		})
	}
	if s.network != "" && s.network != network && !s.chained {
		list = append(list, migrate.Obstacle{
			What:   fmt.Sprintf("the CNI configuration names the network %s, and Berth's is %s: the DEL of an adopted pod would not find it", s.network, network),
			Remedy: fmt.Sprintf("set --cni-network=%s (cni.network of the chart) for berthd and for this command", s.network), Blocks: true,
		})
	}
	byAddr := map[netip.Addr]string{}
	for _, p := range s.pods {
		for _, a := range p.Addrs {
			if other := byAddr[a]; other != "" {
				list = append(list, migrate.Obstacle{
					What: fmt.Sprintf("%s leads to %s and to %s", a, other, p.Link.Name), Blocks: true,
					Remedy: "find out which pod has the address, and delete the other",
				})
			}
			byAddr[a] = p.Link.Name
		}
	}
	for _, r := range s.records {
		for _, a := range r.Lease.Held() {
			if link := byAddr[a]; link != "" {
				list = append(list, migrate.Obstacle{
					What: fmt.Sprintf("%s belongs to %s/%s, which Berth made, and to %s of Coil", a, r.Pod.Namespace, r.Pod.Name, link), Blocks: true,
					Remedy: "delete one of the two pods",
				})
			}
		}
	}
	if n := s.chainedPods(); n > 0 {
		list = append(list, migrate.Obstacle{
			What:   fmt.Sprintf("%d pods have an interface of another network, and their egress from Coil: they keep both", n),
			Remedy: "replace them once their Egress is Berth's",
		})
	}
	if n := len(s.pods); n > 0 && s.unnamed() > 0 {
		list = append(list, migrate.Obstacle{
			What:   fmt.Sprintf("the names of %d of %d pods are unknown: the container runtime keeps no results below /var/lib/cni", s.unnamed(), n),
			Remedy: "they are adopted anyway; berthctl lists them without their names",
		})
	}
	return list
}

// chainedPods counts pods with an interface of another network, to which Coil added egress.
func (s state) chainedPods() (n int) {
	for _, p := range s.pods {
		if p.chained() {
			n++
		}
	}
	return n
}

// unnamed counts pods whose names are unknown.
func (s state) unnamed() (n int) {
	for _, p := range s.pods {
		if p.Pod.Name == "" && p.Pool != "" {
			n++
		}
	}
	return n
}

// unannounced returns the blocks with addresses of pods that only Coil announces.
func (s state) unannounced(berth []netip.Prefix) (list []netip.Prefix) {
	used := func(block netip.Prefix) bool {
		in := func(addrs []netip.Addr) bool { return slices.ContainsFunc(addrs, block.Contains) }
		return slices.ContainsFunc(s.pods, func(p pod) bool { return in(p.Addrs) }) ||
			slices.ContainsFunc(s.records, func(r attachment.Record) bool { return in(r.Lease.Addrs()) })
	}
	for _, block := range s.exports {
		if !slices.Contains(berth, block) && used(block) {
			list = append(list, block)
		}
	}
	return list
}

func reason(f migrate.Fate, why string) string {
	if f == migrate.Adopt {
		return "apply adopts it"
	}
	return "delete it, since " + why
}
