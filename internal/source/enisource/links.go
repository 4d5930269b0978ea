package enisource

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// linkPatience is how long the link of an ENI that was attached may take to appear
// before it counts as missing. It takes seconds.
const linkPatience = 30 * time.Second

// driverPatience is how long a driver that starts again may take until pods and the node are told that
// a link is gone. Its addresses are not handed out meanwhile.
const driverPatience = 5 * time.Second

// absence is since when the node has had no link of an ENI.
type absence struct {
	since time.Time
	had   bool // it had one before
}

// missing tells whether the link should be there: it is gone, or has not come for long.
func (a absence) missing(now time.Time) bool { return a.had || now.Sub(a.since) >= linkPatience }

// toldAt is when pods and the node are told.
func (a absence) toldAt() time.Time {
	if a.had {
		return a.since.Add(driverPatience)
	}
	return a.since.Add(linkPatience)
}

// followLinks finds the links of ENIs that went or came since they were set up. From then
// on no address of such an ENI is handed out, until the data path has its link again. It
// tells whether it could compare them.
func (s *Source) followLinks(ctx context.Context) bool {
	changed, err := s.opts.Datapath.ChangedLinks(ctx)
	if err != nil {
		s.log.Warn("links of ENIs not compared, will try again", "error", err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.absent {
		if _, published := s.published[id]; !published && changed[id] != source.LinkGone {
			delete(s.absent, id) // it came although nobody says that the ENI is the node's: the supplier is to look
		}
	}
	for id, change := range changed {
		if _, published := s.published[id]; published || change == source.LinkGone && s.holds(id) {
			s.lacksLink(id, true)
		}
	}
	return true
}

// nextTold is when the next missing link is told of; zero: none is to be.
func (s *Source) nextTold(now time.Time) (next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.absent {
		next = retry.Earliest(now, next, a.toldAt())
	}
	return next
}

// lacksLinks tells whether the node lacks the link of any ENI.
func (s *Source) lacksLinks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.absent) > 0
}

// lacksLink notes that the node has no link of an ENI, or another than was set up.
// s.mu is held.
func (s *Source) lacksLink(id string, had bool) {
	if _, ok := s.absent[id]; ok {
		return
	}
	if had {
		s.log.Warn("the link of an ENI is gone: its addresses are not handed out until it is back", "eni", id)
	}
	s.absent[id] = absence{s.clock.Now(), had}
	s.alloc.SetReady(id, false)
}

// holds tells whether a pod has an address of an ENI. s.mu is held.
func (s *Source) holds(id string) bool {
	for _, l := range s.leases {
		if l.ENI == id {
			return true
		}
	}
	return false
}

// MissingLinks are the ENIs whose links the node lacks although they should be there, or
// which pods use and the inventory lacks, sorted.
func (s *Source) MissingLinks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missingLinks()
}

// missingLinks are the ENIs whose links are missing, sorted. s.mu is held.
func (s *Source) missingLinks() (ids []string) {
	now := s.clock.Now()
	for _, id := range sortedIDs(s.absent) {
		if s.absent[id].missing(now) {
			ids = append(ids, id)
		}
	}
	return ids
}

// The causes why a running pod is cut off.
const (
	causeNoLink     = "eni-link-missing"
	causeDetached   = "eni-detached"
	causeUnassigned = "address-unassigned"
)

// trouble is why a running pod is cut off.
type trouble struct{ cause, message string }

// review tells the supplier which links are missing, and pods that they are cut off, or are not
// any more. It is called after everything that can change either.
func (s *Source) review() {
	s.mu.Lock()
	missing := s.missingLinks()
	kick := !slices.Equal(missing, s.reviewed)
	s.reviewed = missing
	var news []podevents.News
	found := s.troubles()
	for key, t := range found {
		if s.troubled[key].cause != t.cause {
			news = append(news, newsOf(key, s.leases[key].pod, podevents.CutOff, t))
		}
	}
	for key := range s.troubled {
		if h, held := s.leases[key]; held && found[key] == (trouble{}) {
			news = append(news, newsOf(key, h.pod, podevents.Restored, trouble{}))
		}
	}
	s.troubled = found
	s.mu.Unlock()
	if kick {
		s.supply.Kick()
	}
	slices.SortFunc(news, func(x, y podevents.News) int { return strings.Compare(x.Pod.Name, y.Pod.Name) })
	for _, n := range news {
		s.tell(n)
	}
}

func newsOf(key attachment.Key, pod attachment.Pod, kind podevents.Kind, t trouble) podevents.News {
	return podevents.News{Pod: pod, IfName: key.IfName, Kind: kind, Cause: t.cause, Message: t.message}
}

// tell logs what became of a running pod, and tells it by an Event.
func (s *Source) tell(n podevents.News) {
	if n.Kind == podevents.Restored {
		s.log.Info("a running pod is not cut off any more", "namespace", n.Pod.Namespace, "pod", n.Pod.Name)
	} else {
		s.log.Warn("a running pod is cut off", "namespace", n.Pod.Namespace, "pod", n.Pod.Name, "cause", n.Cause, "why", n.Message)
	}
	if s.opts.Tell != nil && n.Pod.Name != "" {
		s.opts.Tell(n)
	}
}

// troubles are the pods that are cut off, as far as links and the cloud tell. s.mu is held.
func (s *Source) troubles() map[attachment.Key]trouble {
	now, lost := s.clock.Now(), s.lostAddresses()
	attached := map[string]bool{}
	for _, e := range s.inv.ENIs {
		attached[e.ID] = true
	}
	out := map[attachment.Key]trouble{}
	for key, l := range s.leases {
		a, absent := s.absent[l.ENI]
		switch {
		case absent && s.troubled[key] != (trouble{}) && lost[key] == nil: // until it can be used again
			out[key] = s.troubled[key]
		case attached[l.ENI] && absent && !a.toldAt().After(now):
			out[key] = trouble{causeNoLink, fmt.Sprintf("the node has no link of ENI %s, which has the pod's address %s", l.ENI, text(l.Addrs()))}
		case lost[key] == nil:
		case !attached[l.ENI]:
			out[key] = trouble{causeDetached, fmt.Sprintf("ENI %s, which has the pod's address %s, is not attached to this node", l.ENI, text(l.Addrs()))}
		default:
			out[key] = trouble{causeUnassigned, fmt.Sprintf("the pod's address %s is not assigned to ENI %s any more", text(lost[key]), l.ENI)}
		}
	}
	return out
}

// lostAddresses are the addresses of running pods that no ENI of the node has, whether it
// serves new pods or not. s.mu is held.
func (s *Source) lostAddresses() map[attachment.Key][]netip.Addr {
	lost := map[attachment.Key][]netip.Addr{}
	if !s.served || s.unconfirmed {
		return lost
	}
	for v := range s.alloc.Busied() {
		if v.Used && v.Group == "" && !slices.ContainsFunc(s.inv.ENIs, func(e eni.ENI) bool { return hasAddress(e, v.Addr) }) {
			lost[v.Key] = append(lost[v.Key], v.Addr)
		}
	}
	return lost
}

func hasAddress(e eni.ENI, a netip.Addr) bool {
	return !e.Primary && e.PrimaryIPv4 == a || slices.Contains(addressesOf(e), a) ||
		slices.ContainsFunc(prefixesOf(e), func(p netip.Prefix) bool { return p.Contains(a) })
}

func text(addrs []netip.Addr) string {
	var parts []string
	for _, a := range addrs {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " and ")
}

// Types of the conditions of ENIs and of the addresses of pods.
const (
	conditionLinks     = "ENILinksPresent"
	conditionAddresses = "PodAddressesAssigned"
	conditionGroups    = "SecurityGroupsFollowed"
)

// conditions are those of the source. s.mu is held.
func (s *Source) conditions() []source.Condition {
	links := source.Condition{Type: conditionLinks, Healthy: true, Reason: "Present"}
	var parts []string
	now := s.clock.Now()
	for _, id := range sortedIDs(s.absent) {
		if s.absent[id].toldAt().After(now) {
			continue
		}
		part := id
		if e, ok := s.published[id]; ok {
			part += fmt.Sprintf(" (device index %d, MAC address %s)", e.DeviceIndex, e.MAC)
		}
		parts = append(parts, part)
	}
	if len(parts) > 0 {
		links = source.Condition{Type: conditionLinks, Reason: "LinkMissing", Message: "the node has no link of " + strings.Join(parts, ", ") +
			": was the ENI detached, or its link moved to another network namespace or driver? None of its addresses is handed out until the link is back"}
	}
	addresses := source.Condition{Type: conditionAddresses, Healthy: true, Reason: "Assigned"}
	var lost []netip.Addr
	for _, addrs := range s.lostAddresses() {
		lost = append(lost, addrs...)
	}
	if slices.SortFunc(lost, netip.Addr.Compare); len(lost) > 0 {
		addresses = source.Condition{Type: conditionAddresses, Reason: "NotAssigned", Message: fmt.Sprintf(
			"%d addresses of running pods are not assigned to an ENI of this node any more, such as %s: delete these pods", len(lost), lost[0])}
	}
	others, followed, compared := s.supply.OtherGroups()
	if !compared {
		return []source.Condition{links, addresses}
	}
	groups := source.Condition{Type: conditionGroups, Healthy: true, Reason: "Followed"}
	if len(others) > 0 {
		groups = source.Condition{Type: conditionGroups, Reason: "Pending", Message: "the security groups of " + strings.Join(others, ", ") +
			" are not those of the primary ENI yet: the log of berthd has why"}
		if !followed {
			groups.Reason, groups.Message = "NotFollowed", "the security groups of "+strings.Join(others, ", ")+
				" are not those of the primary ENI: change them at EC2, or set --follow-security-groups"
		}
	}
	return []source.Condition{links, addresses, groups}
}

// linkAbsent takes the result of SetENI. s.mu is held.
func (s *Source) linkAbsent(id string, err error) {
	switch _, had := s.programmed[id]; {
	case err == nil:
		delete(s.absent, id)
	case errors.Is(err, source.ErrNoLink):
		s.lacksLink(id, had)
	}
}

// cutOff counts the pods that are cut off, by cause. s.mu is held.
func (s *Source) cutOff() map[string]int {
	count := map[string]int{}
	for _, t := range s.troubled {
		count[t.cause]++
	}
	return count
}
