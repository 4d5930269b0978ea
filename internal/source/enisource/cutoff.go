package enisource

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podevents"
)

// The causes why a running pod is cut off.
const (
	causeNoLink     = "eni-link-missing"
	causeDetached   = "eni-detached"
	causeUnassigned = "address-unassigned"
)

// cutOff is why a running pod is cut off.
type cutOff struct{ cause, message string }

// cutOffs tells pods that they are cut off, or no longer are, and the supplier which links are missing.
// Source.mu guards it; review is called by the programmer alone.
type cutOffs struct {
	s       *Source
	pods    map[attachment.Key]cutOff // as the pods were notified
	missing []string                  // links, as reported to the supplier
}

// review is called after everything that can cut pods off.
func (c *cutOffs) review() {
	s := c.s
	s.mu.Lock()
	missing := s.addresses.enis.missingLinks()
	kick := !slices.Equal(missing, c.missing)
	c.missing = missing
	news := c.update(c.find())
	s.mu.Unlock()
	if kick {
		s.supply.Kick()
	}
	slices.SortFunc(news, func(x, y podevents.News) int { return strings.Compare(x.Pod.Name, y.Pod.Name) })
	for _, n := range news {
		c.tell(n)
	}
}

// update takes which pods are cut off now, and returns what is new of that. Source.mu is held.
func (c *cutOffs) update(found map[attachment.Key]cutOff) (news []podevents.News) {
	leases := c.s.addresses.leases
	newsOf := func(key attachment.Key, kind podevents.Kind, t cutOff) podevents.News {
		return podevents.News{Pod: leases[key].pod, IfName: key.IfName, Kind: kind, Cause: t.cause, Message: t.message}
	}
	for key, t := range found {
		if c.pods[key].cause != t.cause {
			news = append(news, newsOf(key, podevents.CutOff, t))
		}
	}
	for key := range c.pods {
		if _, held := leases[key]; held && found[key] == (cutOff{}) {
			news = append(news, newsOf(key, podevents.Restored, cutOff{}))
		}
	}
	c.pods = found
	return news
}

// find returns the pods that are cut off, as far as links and the inventory say. Source.mu is held.
func (c *cutOffs) find() map[attachment.Key]cutOff {
	a := &c.s.addresses
	now, lost := c.s.clock.Now(), a.lost()
	attached := map[string]bool{}
	for _, e := range a.inv.ENIs {
		attached[e.ID] = true
	}
	out := map[attachment.Key]cutOff{}
	for key, l := range a.leases {
		absence, absent := a.enis.absent[l.ENI]
		switch {
		case absent && c.pods[key] != (cutOff{}) && lost[key] == nil: // until it can be used again
			out[key] = c.pods[key]
		case attached[l.ENI] && absent && !absence.reportedAt().After(now):
			out[key] = cutOff{causeNoLink, fmt.Sprintf("the node has no link of ENI %s, which has the pod's address %s", l.ENI, text(l.Addrs()))}
		case lost[key] == nil:
		case !attached[l.ENI]:
			out[key] = cutOff{causeDetached, fmt.Sprintf("ENI %s, which has the pod's address %s, is not attached to this node", l.ENI, text(l.Addrs()))}
		default:
			out[key] = cutOff{causeUnassigned, fmt.Sprintf("the pod's address %s is not assigned to ENI %s any more", text(lost[key]), l.ENI)}
		}
	}
	return out
}

// tell logs what became of a running pod, and records it as an Event.
func (c *cutOffs) tell(n podevents.News) {
	log := c.s.log.With("namespace", n.Pod.Namespace, "pod", n.Pod.Name)
	if n.Kind == podevents.Restored {
		log.Info("a running pod is no longer cut off")
	} else {
		log.Warn("a running pod is cut off", "cause", n.Cause, "why", n.Message)
	}
	if c.s.opts.Notify != nil && n.Pod.Name != "" {
		c.s.opts.Notify(n)
	}
}

// count returns the number of pods that are cut off, by cause. Source.mu is held.
func (c *cutOffs) count() map[string]int {
	count := map[string]int{}
	for _, t := range c.pods {
		count[t.cause]++
	}
	return count
}

func text(addrs []netip.Addr) string {
	var parts []string
	for _, a := range addrs {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " and ")
}
