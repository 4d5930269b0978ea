package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podevents"
)

// Some network managers add the addresses of an ENI to its link. The kernel then treats such an address
// as local, regardless of routes, and the pod that has it becomes unreachable.

// nodeAddresses finds addresses of pods on links of the node, and reports the pods that they make unreachable.
type nodeAddresses struct {
	remove bool                 // remove running pods' addresses from the node's links (--foreign-addresses=remove)
	tell   func(podevents.News) // may be nil

	mu       sync.Mutex // guards the fields below
	cut      map[netip.Addr]attachment.Key
	withheld int
}

// cutOff is a running pod whose address the node has as well.
type cutOff struct {
	datapath.NodeAddress
	pod attachment.Record
}

// findCutOff returns the running pods with addresses that the node has as well.
func findCutOff(have []datapath.NodeAddress, records []attachment.Record) (cut []cutOff) {
	pods := map[netip.Addr]attachment.Record{}
	for _, rec := range records {
		if rec.State != attachment.Ready {
			continue
		}
		addrs := rec.Lease.Held()
		for _, nic := range rec.NICs {
			for _, a := range nic.Addresses {
				if plug.Kind(nic.Plug.Type) == plug.RoutedVLAN {
					addrs = append(addrs, a.CIDR.Addr())
				}
			}
		}
		for _, a := range addrs {
			pods[a] = rec
		}
	}
	for _, a := range have {
		if rec, ok := pods[a.Addr]; ok {
			cut = append(cut, cutOff{a, rec})
		}
	}
	return cut
}

// addressCondition returns the condition AddressesExclusive.
func addressCondition(have []datapath.NodeAddress, cut []cutOff, withheld []netip.Addr) (healthy bool, reason, message string) {
	var messages, own []string
	foreign := false
	classify := func(a datapath.NodeAddress) {
		foreign = foreign || !a.Own
		if a.Own {
			own = append(own, a.String())
		}
	}
	for _, c := range cut {
		reason = "PodAddressOnNode"
		classify(c.NodeAddress)
		messages = append(messages, fmt.Sprintf("%s is the address of pod %s/%s, which is unreachable", c, c.pod.Pod.Namespace, c.pod.Pod.Name))
	}
	if len(withheld) > 0 {
		var free []string
		for _, a := range withheld {
			i := slices.IndexFunc(have, func(h datapath.NodeAddress) bool { return h.Addr == a })
			if i < 0 { // the pair's other address, if dual-stack
				free = append(free, a.String())
				continue
			}
			classify(have[i])
			free = append(free, have[i].String())
		}
		if reason == "" {
			reason = "AddressesWithheld"
		}
		messages = append(messages, "withheld from pods: "+shortList(free))
	}
	if reason == "" {
		return true, "Exclusive", ""
	}
	switch remove := " from the node's links, and keep its network manager from adding them"; {
	case len(own) == 0:
		messages = append(messages, "remove these addresses"+remove)
	case foreign:
		messages = append(messages, "remove the addresses other than "+shortList(own)+remove)
	}
	if len(own) > 0 {
		advice := "the node needs " + shortList(own) + ": move the pool to other subnets"
		if slices.ContainsFunc(cut, func(c cutOff) bool { return c.Own }) {
			advice += ", or delete the pod"
		}
		messages = append(messages, advice)
	}
	return false, reason, strings.Join(messages, "; ")
}

// shortList joins the first elements of a list.
func shortList(list []string) string {
	const most = 5
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// lookAtAddresses updates the condition AddressesExclusive, and withholds addresses that the node has
// from pods.
func (r *repairer) lookAtAddresses(ctx context.Context) {
	have, cut, err := r.findAddresses(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("comparing the node's addresses with those for pods failed, will try again", "err", err)
		}
		return
	}
	var all []netip.Addr
	for _, a := range have {
		all = append(all, a.Addr)
	}
	withheld := r.source.Withhold(all)
	healthy, reason, message := addressCondition(have, cut, withheld)
	r.conditions.set(ConditionExclusive, healthy, reason, message)
	r.addresses.note(cut, len(withheld))
}

// findAddresses lists the node's addresses and the pods that they make unreachable. If configured, it removes
// those addresses, except the node's own.
func (r *repairer) findAddresses(ctx context.Context) (have []datapath.NodeAddress, cut []cutOff, err error) {
	if have, err = r.upkeep.NodeAddresses(ctx); err != nil {
		return nil, nil, err
	}
	nodes := r.source.NodeAddresses()
	for i, a := range have {
		have[i].Own = a.Own || slices.Contains(nodes, a.Addr)
	}
	cut = findCutOff(have, r.store.Records())
	if !r.addresses.remove {
		return have, cut, nil
	}
	var left []cutOff
	for _, c := range cut {
		if c.Own {
			left = append(left, c)
			continue
		}
		if err := r.upkeep.RemoveNodeAddress(ctx, c.Addr); err != nil {
			r.log.Warn("removing a pod's address from the node failed, will try again", c.pod.ForLog("address", c.String(), "err", err)...)
			left = append(left, c)
			continue
		}
		r.repairs.WithLabelValues().Inc()
		r.log.Warn("removed a pod's address from the node", c.pod.ForLog("address", c.String())...)
		have = slices.DeleteFunc(have, func(a datapath.NodeAddress) bool { return a == c.NodeAddress })
	}
	return have, left, nil
}

// note updates the counts for metrics, and reports each unreachable pod once.
func (n *nodeAddresses) note(cut []cutOff, withheld int) {
	n.mu.Lock()
	before := n.cut
	n.cut, n.withheld = map[netip.Addr]attachment.Key{}, withheld
	for _, c := range cut {
		n.cut[c.Addr] = c.pod.Key
	}
	n.mu.Unlock()
	for _, c := range cut {
		if n.tell == nil || before[c.Addr] == c.pod.Key || checkPod(c.pod.Pod) != nil {
			continue
		}
		news := podevents.News{
			Pod: c.pod.Pod, IfName: c.pod.Key.IfName, Kind: podevents.AddressShared, Cause: podevents.OnNode,
			Message: fmt.Sprintf("the node has the pod's address %s as well, so the pod is unreachable", c),
		}
		if c.Own {
			news.Cause = podevents.UsedElsewhere
			news.Message += ", and needs it: delete the pod so that it gets another address"
		}
		n.tell(news)
	}
}

// counts returns the counts for metrics.
func (n *nodeAddresses) counts() (pods, withheld int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.cut), n.withheld
}
