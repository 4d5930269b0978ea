package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/podevents"
)

// Some network managers add the addresses of an ENI to its link. The kernel then treats such an address
// as local, regardless of routes, and the pod that has it becomes unreachable.

// nodeAddresses counts addresses of pods that the node or other software on it has as well, and reports the pods that share
// them.
type nodeAddresses struct {
	remove bool                 // remove running pods' addresses from the node's links (--foreign-addresses=remove)
	tell   func(podevents.News) // may be nil

	mu       sync.Mutex // guards the fields below
	cut      map[netip.Addr]attachment.Key
	onNode   int                    // pods' addresses that the node has as well
	withheld int                    // addresses that the node has, and no pod
	byOthers map[foreign.System]int // addresses of the source that other software has
}

// claim is an address that the node itself has, or a pod of other software on it.
type claim struct {
	datapath.NodeAddress
	by *foreign.Holder // nil: a link of the node has it
}

// String is such as "10.0.0.7 on eth1" or "10.0.0.7 (Coil, link veth0, table 116)".
func (c claim) String() string {
	if c.by != nil {
		return c.by.String()
	}
	return c.NodeAddress.String()
}

// cutOff is a running pod with an address that the node or other software has as well.
type cutOff struct {
	claim
	pod attachment.Record
}

// findCutOff returns the running pods with addresses that are claimed as well.
func findCutOff(claims []claim, records []attachment.Record) (cut []cutOff) {
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
	for _, a := range claims {
		if rec, ok := pods[a.Addr]; ok {
			cut = append(cut, cutOff{a, rec})
		}
	}
	return cut
}

// addressCondition returns the condition AddressesExclusive.
func addressCondition(claims []claim, cut []cutOff, withheld []netip.Addr) (healthy bool, reason, message string) {
	var messages, free, others []string
	var disputed []claim // those of pods and those withheld
	for _, c := range cut {
		disputed = append(disputed, c.claim)
		if c.by == nil {
			reason = "PodAddressOnNode"
			messages = append(messages, fmt.Sprintf("%s is the address of pod %s/%s, which is unreachable", c, c.pod.Pod.Namespace, c.pod.Pod.Name))
			continue
		}
		reason = cmp.Or(reason, "PodAddressShared")
		messages = append(messages, fmt.Sprintf("%s is also the address of pod %s/%s", c, c.pod.Pod.Namespace, c.pod.Pod.Name))
	}
	onNode := 0
	for _, a := range withheld {
		i := slices.IndexFunc(claims, func(h claim) bool { return h.Addr == a })
		switch {
		case i < 0: // the pair's other address, if dual-stack
			free = append(free, a.String())
			continue
		case claims[i].by != nil:
			others = append(others, claims[i].String())
		default:
			free, onNode = append(free, claims[i].String()), onNode+1
		}
		disputed = append(disputed, claims[i])
	}
	if len(free) > 0 {
		messages = append(messages, "withheld from pods: "+shortList(free))
	}
	if len(others) > 0 {
		messages = append(messages, "held by others, and withheld from pods: "+shortList(others))
	}
	switch {
	case onNode > 0:
		reason = cmp.Or(reason, "AddressesWithheld")
	case len(free)+len(others) > 0:
		reason = cmp.Or(reason, "HeldByOthers")
	}
	if reason == "" {
		return true, "Exclusive", ""
	}
	messages = append(messages, remedies(disputed, slices.ContainsFunc(cut, func(c cutOff) bool { return c.Own }))...)
	return false, reason, strings.Join(messages, "; ")
}

// remedies returns what to do about addresses that the node or other software has, and that are for pods. podHasOwn is whether
// a pod has an address that the node needs.
func remedies(disputed []claim, podHasOwn bool) (messages []string) {
	var own []string
	onLinks, sharing := false, false
	for _, a := range disputed {
		sharing = sharing || a.by != nil
		onLinks = onLinks || a.by == nil && !a.Own
		if a.Own {
			own = append(own, a.String())
		}
	}
	switch remove := " from the node's links, and keep its network manager from adding them"; {
	case onLinks && len(own) == 0:
		messages = append(messages, "remove these addresses"+remove)
	case onLinks:
		messages = append(messages, "remove the addresses other than "+shortList(own)+remove)
	}
	if len(own) > 0 {
		advice := "the node needs " + shortList(own) + ": move the pool to other subnets"
		if podHasOwn {
			advice += ", or delete the pod"
		}
		messages = append(messages, advice)
	}
	if sharing {
		messages = append(messages, "addresses held by others become available when their pods are gone: move the node to one pod network")
	}
	return messages
}

// shortList joins the first elements of a list.
func shortList(list []string) string {
	const most = 5
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// othersEvery is how often other pod networks are looked for between repairs.
const othersEvery = 2 * time.Second

// followOthers reports other pod networks that come or go, until ctx ends.
func (r *repairer) followOthers(ctx context.Context) {
	for r.foreign != nil {
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(othersEvery):
			r.fresh(ctx)
		}
	}
}

// fresh looks at the addresses if another pod network has handed out or taken back some since the last look. ADDs call it
// before they get an address.
func (r *repairer) fresh(ctx context.Context) {
	if r.foreign == nil || !r.foreign.Changed() {
		return
	}
	r.looking.Lock()
	defer r.looking.Unlock()
	if r.foreign.Changed() { // not seen by another ADD meanwhile
		_ = r.look(ctx)
	}
}

// lookAtAddresses updates the conditions AddressesExclusive and SoleCNIPlugin, and withholds addresses that the node or
// other software on it has from pods.
func (r *repairer) lookAtAddresses(ctx context.Context) error {
	r.looking.Lock()
	defer r.looking.Unlock()
	return r.look(ctx)
}

// look is lookAtAddresses with r.looking held.
func (r *repairer) look(ctx context.Context) error {
	have, cut, err := r.findAddresses(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("comparing the node's addresses with those for pods failed, will try again", "err", err)
		}
		return err
	}
	var all []netip.Addr
	for _, a := range have {
		all = append(all, a.Addr)
	}
	withheld := r.source.Withhold(all)
	healthy, reason, message := addressCondition(have, cut, withheld)
	r.conditions.set(ConditionExclusive, healthy, reason, message)
	r.addresses.note(have, cut, withheld)
	return nil
}

// findAddresses lists the addresses of the node and of other software on it, and the pods that share them. If configured,
// it removes those of the node, except the node's own.
func (r *repairer) findAddresses(ctx context.Context) (have []claim, cut []cutOff, err error) {
	list, err := r.upkeep.NodeAddresses(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes := r.source.NodeAddresses()
	for _, a := range list {
		a.Own = a.Own || slices.Contains(nodes, a.Addr)
		have = append(have, claim{NodeAddress: a})
	}
	records := r.store.Records()
	if have, err = r.addOthers(ctx, have, records); err != nil {
		return nil, nil, err
	}
	cut = findCutOff(have, records)
	if !r.addresses.remove {
		return have, cut, nil
	}
	var left []cutOff
	for _, c := range cut {
		if c.Own || c.by != nil {
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
		have = slices.DeleteFunc(have, func(a claim) bool { return a == c.claim })
	}
	return have, left, nil
}

// addOthers adds the addresses of other software on the node, and updates the condition SoleCNIPlugin.
func (r *repairer) addOthers(ctx context.Context, have []claim, records []attachment.Record) ([]claim, error) {
	if r.foreign == nil {
		return have, nil
	}
	routes, err := r.upkeep.ForeignRoutes(ctx)
	if err != nil {
		return nil, err
	}
	seen := r.foreign.Observe(ctx, routes, records)
	for i, h := range seen.Holders {
		if !slices.ContainsFunc(have, func(c claim) bool { return c.Addr == h.Addr }) {
			have = append(have, claim{NodeAddress: datapath.NodeAddress{Addr: h.Addr}, by: &seen.Holders[i]})
		}
	}
	healthy, reason, message := foreign.Sole(seen.Configs, seen.Networks)
	r.conditions.set(ConditionSole, healthy, reason, message)
	return have, nil
}

// note updates the counts for metrics, and reports each unreachable pod once.
func (n *nodeAddresses) note(have []claim, cut []cutOff, withheld []netip.Addr) {
	n.mu.Lock()
	before := n.cut
	n.cut, n.onNode, n.withheld, n.byOthers = map[netip.Addr]attachment.Key{}, 0, len(withheld), map[foreign.System]int{}
	for _, a := range have {
		if a.by != nil && slices.Contains(withheld, a.Addr) {
			n.byOthers[a.by.System]++
			n.withheld--
		}
	}
	for _, c := range cut {
		n.cut[c.Addr] = c.pod.Key
		if c.by != nil {
			n.byOthers[c.by.System]++
		} else {
			n.onNode++
		}
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
		switch {
		case c.by != nil:
			news.Cause = podevents.UsedElsewhere
			news.Message = fmt.Sprintf("another pod network on the node has the pod's address as well: %s: delete one of the pods so that it gets another address", c)
		case c.Own:
			news.Cause = podevents.UsedElsewhere
			news.Message += ", and needs it: delete the pod so that it gets another address"
		}
		n.tell(news)
	}
}

// counts returns the counts for metrics.
func (n *nodeAddresses) counts() (pods, withheld int, byOthers map[foreign.System]int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.onNode, n.withheld, n.byOthers
}
