package planner

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source/enisource"
)

const (
	measureEvery = time.Minute      // the maximum interval between two measurements of all addresses
	reasonsEvery = 10 * time.Second // while pods wait
	maxEvents    = 500
)

// recorder counts what happens in a world.
type recorder struct {
	w     *world
	start time.Time
	every time.Duration // between points of the series
	out   OfAlternative

	pods    int // ever
	waits   []time.Duration
	limits  map[[2]string]*limit // that pods wait for now, by kind and object
	measure *measure             // the last
	idle    float64              // warm addresses × seconds

	mu     sync.Mutex // guards all below
	calls  map[string]*Calls
	seen   Calls // all calls as of the last point
	failed error
}

// limit is a limit that pods wait for.
type limit struct {
	event int // index of its event
	since time.Time
	last  time.Time // when it was seen
}

// measure is the addresses of all subnets at a time.
type measure struct {
	at      time.Time
	subnets map[string]*addresses
	enis    int
}

type addresses struct{ used, warm, cooling, enis, free, ipv6 int }

func newRecorder(w *world) *recorder {
	r := &recorder{w: w, start: w.Now(), every: w.sc.sample(), calls: map[string]*Calls{}, limits: map[[2]string]*limit{}}
	r.out.Name, r.out.Events, r.out.Calls = w.sc.name, []Event{}, []Calls{}
	for _, s := range w.sc.Subnets {
		r.out.Series.Subnets = append(r.out.Series.Subnets, SubnetSeries{Name: s.Name, CIDR: s.CIDR, Size: s.size(), Others: s.others()})
	}
	return r
}

// begin schedules the measurements.
func (r *recorder) begin() {
	parts := int((r.every + measureEvery - 1) / measureEvery)
	part := r.every / time.Duration(parts)
	n := 0
	var look func()
	look = func() {
		r.look()
		if n%parts == 0 {
			r.point()
		}
		n++
		if n <= parts*int(r.w.sc.Duration.Std()/r.every) {
			r.w.later(time.Until(r.start.Add(time.Duration(n)*part)), look)
		}
	}
	look()
	var reasons func()
	reasons = func() {
		r.reasons()
		r.w.later(reasonsEvery, reasons)
	}
	r.w.later(reasonsEvery, reasons)
}

func (r *recorder) since() Duration { return Duration(r.w.Now().Sub(r.start)) }

// event records something that happened now.
func (r *recorder) event(e Event) int {
	e.At = r.since()
	if len(r.out.Events) >= maxEvents {
		return -1
	}
	r.out.Events = append(r.out.Events, e)
	return len(r.out.Events) - 1
}

// fail ends the simulation with an error.
func (r *recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = errors.Join(r.failed, err)
}

// waited records how long a pod waited for its address.
func (r *recorder) waited(d time.Duration) { r.waits = append(r.waits, d) }

// Limited implements pace.Observer.
func (*recorder) Limited(string, time.Duration) {}

// Call implements pace.Observer.
func (r *recorder) Call(op, code string, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.calls[op]
	if c == nil {
		c = &Calls{Action: op}
		r.calls[op] = c
	}
	c.Calls++
	switch code {
	case "OK":
	case "RequestLimitExceeded":
		c.Throttled++
	case "InsufficientFreeAddressesInSubnet", "InsufficientCidrBlocks":
		c.SubnetFull++
	case "AttachmentLimitExceeded", "PrivateIpAddressLimitExceeded":
		c.ENILimit++
	default:
		c.OtherErrors++
	}
}

func (c Calls) refused() int { return c.SubnetFull + c.ENILimit + c.OtherErrors }

// total sums up the calls of all actions.
func (r *recorder) total() (sum Calls) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		sum.Calls += c.Calls
		sum.Throttled += c.Throttled
		sum.SubnetFull += c.SubnetFull
		sum.ENILimit += c.ENILimit
		sum.OtherErrors += c.OtherErrors
	}
	return sum
}

// look measures all addresses, and adds the time since the last measurement to the totals.
func (r *recorder) look() {
	m, warm := r.take(), 0
	if r.measure != nil {
		for _, a := range r.measure.subnets {
			warm += a.warm
		}
		r.idle += float64(warm) * m.at.Sub(r.measure.at).Seconds()
	}
	r.measure = m
	held, idle := 0, 0
	for _, a := range m.subnets {
		held += a.used + a.warm + a.cooling + a.enis
		idle += a.warm
	}
	t := &r.out.Totals
	t.EndHeld, t.PeakIdle = held, max(t.PeakIdle, idle)
	r.w.cloud.Front.ResetCalls()
}

// take measures all addresses: those that EC2 has assigned, and their use on nodes.
func (r *recorder) take() *measure {
	m := &measure{at: r.w.Now(), subnets: map[string]*addresses{}}
	for _, s := range r.w.sc.Subnets {
		m.subnets[s.Name] = &addresses{free: r.w.cloud.State.Free(s.Name)}
		if s.CIDR == "" {
			m.subnets[s.Name].free = 0
		}
	}
	used, cooling := map[string]int{}, map[string]int{}
	for _, n := range r.w.nodes {
		for id, u := range enisource.NodeOf(n.src).Usage().ENIs {
			used[id], cooling[id] = u.Used, u.Cooling
		}
	}
	p := r.w.sc.eni
	r.w.cloud.State.Each(func(e *cloud.ENI) {
		a := m.subnets[e.SubnetID]
		m.enis++
		if p.Policy.Families.Has(ipfamily.IPv6) {
			a.ipv6 += used[e.ID]
		}
		if !e.Primary.IsValid() {
			return
		}
		own, has := 1, len(e.Addresses)+ipam.PrefixAddresses*len(e.Prefixes)
		switch primary := e.Attachment != nil && e.Attachment.DeviceIndex == 0; {
		case e.Type == cloud.InterfaceBranch:
			own, used[e.ID], has = 0, 1, 1
		case p.UsePrimaryAddress && !primary && e.Type == cloud.InterfaceOrdinary:
			own, has = 0, has+1
		}
		u, c := min(used[e.ID], has), 0
		if !p.Policy.Families.Has(ipfamily.IPv4) && e.Type != cloud.InterfaceBranch {
			u = 0
		} else {
			c = min(cooling[e.ID], has-u)
		}
		a.enis += own
		a.used += u
		a.cooling += c
		a.warm += has - u - c
	})
	return m
}

// point adds a point to the series.
func (r *recorder) point() {
	s := &r.out.Series
	s.At = append(s.At, r.since().Std().Seconds())
	for i := range s.Subnets {
		o, a := &s.Subnets[i], r.measure.subnets[s.Subnets[i].Name]
		o.Used, o.Warm, o.Cooling = append(o.Used, a.used), append(o.Warm, a.warm), append(o.Cooling, a.cooling)
		o.ENIs, o.Free = append(o.ENIs, a.enis), append(o.Free, a.free)
		if r.w.sc.Subnets[i].IPv6 || o.CIDR == "" {
			o.IPv6 = append(o.IPv6, a.ipv6)
		}
	}
	waiting := 0
	for _, n := range r.w.nodes {
		waiting += len(n.waiting)
	}
	s.Nodes, s.ENIs = append(s.Nodes, len(r.w.nodes)), append(s.ENIs, r.measure.enis)
	s.Running, s.Waiting = append(s.Running, r.w.work.running), append(s.Waiting, waiting)
	s.Pending = append(s.Pending, r.w.work.pendingPods())
	s.Branches = append(s.Branches, len(r.w.cloud.State.Associations()))
	now := r.total()
	s.Calls, s.Throttled = append(s.Calls, now.Calls-r.seen.Calls), append(s.Throttled, now.Throttled-r.seen.Throttled)
	s.Refused = append(s.Refused, now.refused()-r.seen.refused())
	if now.Throttled > 0 && r.seen.Throttled == 0 {
		r.event(Event{Kind: KindFirstRefusal, Text: "EC2 throttles calls, since the point before"})
	}
	r.seen = now
}

// reasons records the limits that pods wait for.
func (r *recorder) reasons() {
	now := r.w.Now()
	seen := map[[2]string]int{}
	texts := map[[2]string]string{}
	note := func(kind, on, text string) {
		key := [2]string{kind, on}
		seen[key]++
		if texts[key] == "" {
			texts[key] = text
		}
	}
	for _, n := range r.w.nodes {
		if len(n.waiting) == 0 {
			continue
		}
		for _, p := range slices.SortedFunc(maps.Keys(n.waiting), func(a, b *pod) int { return cmp.Compare(a.number, b.number) }) {
			if now.Sub(p.asked) < reasonsEvery {
				continue
			}
			kind, on, text := r.reason(n, p.key())
			note(kind, on, text)
		}
	}
	for _, p := range r.w.work.pending {
		if p.gone {
			continue
		}
		switch anyReady := slices.ContainsFunc(r.w.nodes, func(n *node) bool { return n.ready }); {
		case !anyReady:
			note(KindOtherReason, "", "Pods are pending: no node is ready")
		case p.of != nil && p.of.Branch && slices.ContainsFunc(r.w.nodes, func(n *node) bool { return n.ready && n.pods < n.maxPods }):
			note(KindBranchLimit, p.of.Name, fmt.Sprintf("Pods of deployment %s are pending: every node has as many branch interfaces as its type allows", p.of.Name))
		default:
			note(KindMaxPods, "", "Pods are pending: every node has as many pods as its kubelet allows")
		}
	}
	r.update(seen, texts, now)
}

// update begins and ends the limits that pods wait for.
func (r *recorder) update(seen map[[2]string]int, texts map[[2]string]string, now time.Time) {
	for _, key := range slices.SortedFunc(maps.Keys(seen), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		l := r.limits[key]
		if l == nil {
			l = &limit{since: now, event: r.event(Event{Kind: key[0], On: key[1], Text: texts[key]})}
			r.limits[key] = l
		}
		l.last = now
		if l.event >= 0 {
			e := &r.out.Events[l.event]
			e.For, e.Pods = Duration(now.Sub(l.since)+reasonsEvery), max(e.Pods, seen[key])
		}
	}
	maps.DeleteFunc(r.limits, func(_ [2]string, l *limit) bool { return now.Sub(l.last) > time.Minute })
}

// reason returns the reason why a pod of a node waits, from the production code.
func (r *recorder) reason(n *node, key attachment.Key) (kind, on, text string) {
	why := n.src.Why(key)
	if why == nil { // a branch
		return KindThrottled, "", "Pods wait for branch interfaces"
	}
	text = "Pods wait: " + strings.TrimPrefix(why.Message, "no address is free: ")
	switch why.Reason {
	case plan.ReasonSubnetFull:
		return KindSubnetFull, n.subnet, text
	case plan.ReasonENILimit, plan.ReasonFirstIndex:
		return KindENILimit, n.group.Name, text
	case plan.ReasonCooling:
		return KindCooling, n.group.Name, text
	case plan.ReasonMaxPods:
		return KindAddressCap, n.group.Name, text
	case "throttled", "growing":
		return KindThrottled, "", text
	}
	return KindOtherReason, n.group.Name, text
}

// finish completes the result.
func (r *recorder) finish() OfAlternative {
	r.look() // the series may end before the simulation
	t, hours := &r.out.Totals, r.since().Std().Hours()
	t.IdleHours = round(r.idle / 3600)
	if hours > 0 {
		t.MeanIdle = round(r.idle / 3600 / hours)
	}
	all := r.total()
	t.Calls, t.Throttled, t.Refused = all.Calls, all.Throttled, all.refused()
	for _, n := range r.w.nodes {
		for p := range n.waiting {
			t.Waiting++
			r.waited(r.w.Now().Sub(p.asked))
		}
	}
	t.Pods, t.Pending = r.pods, r.w.work.pendingPods()
	slices.Sort(r.waits)
	if n := len(r.waits); n > 0 {
		at := func(share float64) float64 { return round(r.waits[min(n-1, int(share*float64(n)))].Seconds()) }
		t.Wait = Wait{at(0.5), at(0.99), at(1)}
		for _, d := range r.waits {
			if d > 0 {
				t.Waited++
			}
		}
	}
	first, most := true, r.w.cloud.State.Peak()
	t.PeakHeld, t.PeakENIs = most.Taken, most.ENIs
	for _, s := range r.w.sc.Subnets {
		if s.CIDR == "" {
			continue
		}
		t.PeakHeld -= s.Used
		least := most.Least[s.Name]
		if first || least.Free < t.LeastFree {
			t.LeastFree, first = least.Free, false
		}
		r.out.Events = append(r.out.Events, Event{At: Duration(max(0, least.At.Sub(r.start))), Kind: KindSubnetPeak, On: s.Name,
			Text: fmt.Sprintf("Subnet %s has the least free addresses: %d of %d", s.Name, least.Free, s.size())})
	}
	slices.SortStableFunc(r.out.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	for _, op := range slices.Sorted(maps.Keys(r.calls)) {
		r.out.Calls = append(r.out.Calls, *r.calls[op])
	}
	return r.out
}

// round keeps a thousandth.
func round(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }
