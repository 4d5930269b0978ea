package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// lag is how old the state of the API may be by which a connection is judged, while no program is missing.
const lag = time.Second

// attempt is how long a connection is tried: TCP and the probes by UDP try again meanwhile.
const attempt = 1300 * time.Millisecond

type interval struct{ from, to time.Time }

// clusterState is a state of the API. It may count from when its change was begun, and its predecessor counts until its change
// was acknowledged.
type clusterState struct {
	interval
	namespaces, labels map[types.NamespacedName]map[string]string // labels of namespaces, and of pods
	policies           map[types.NamespacedName]compile.Compiled  // ClusterNetworkPolicies without a namespace
}

// judgedPod is a pod whose ADD has returned.
type judgedPod struct {
	*node.Pod
	name   types.NamespacedName
	labels map[string]string // when it started
	up     time.Time
	down   time.Time // when its deletion began; zero: it runs
}

// allows judges a connection between two pods in a state.
func (s *clusterState) allows(from, to *judgedPod, f policy.Flow) bool {
	r := resolve.New()
	for name, labels := range s.namespaces {
		r.SetNamespace(name.Name, labels)
	}
	for _, p := range []*judgedPod{from, to} {
		if s.namespaces[types.NamespacedName{Name: p.name.Namespace}] == nil {
			r.SetNamespace(p.name.Namespace, nil)
		}
		labels, there := s.labels[p.name]
		if !there { // its node may know it sooner than what else has changed
			labels = p.labels
		}
		judged := resolve.Pod{NamespacedName: p.name, UID: types.UID(p.UID), Node: p.Node, Labels: labels, Addrs: p.Addrs}
		for _, port := range p.Named {
			protocol, _ := compile.ProtocolOf(corev1.Protocol(port.Protocol))
			judged.Ports = append(judged.Ports, resolve.NamedPort{Name: port.Name, Protocol: protocol, Number: port.Port})
		}
		r.SetPod(judged)
	}
	for at, p := range s.policies {
		if at.Namespace == "" || at.Namespace == from.name.Namespace || at.Namespace == to.name.Namespace {
			r.SetPolicy(p)
		}
	}
	return r.Judge(f).Allowed()
}

// since returns from when on states may count for a packet that was sent at a moment.
func (u *policyUsers) since(sent time.Time) time.Time {
	from := sent.Add(-lag)
	for _, t := range u.troubles {
		if t.to.After(from) && t.from.Add(-lag).Before(from) {
			from = t.from.Add(-lag)
		}
	}
	if !u.trouble.IsZero() && u.trouble.Add(-lag).Before(from) {
		from = u.trouble.Add(-lag)
	}
	return from
}

// judge compares what became of a connection between two moments with all states that may count: what was is wrong if each
// of them says otherwise.
func (u *policyUsers) judge(what string, from, to *judgedPod, f policy.Flow, sent, end time.Time, passed bool) {
	time.Sleep(3 * tick) //nolint:forbidigo // until a program that died meanwhile is missed: no event says that none did
	u.mu.Lock()
	defer u.mu.Unlock()
	first := u.since(sent)
	excused := false // if it was refused
	for _, p := range []*judgedPod{from, to} {
		gone := !p.down.IsZero() && p.down.Before(end)
		another := slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return u.lost[a].After(first) })
		excused = excused || first.Before(sent.Add(-lag)) && first.Before(p.up) // nobody could tell others its addresses
		if gone || another {
			u.skipped++
			return
		}
	}
	excused = excused || slices.ContainsFunc(u.stalls, func(s interval) bool { return s.from.Before(end) && s.to.After(sent) })
	agree, count := 0, 0
	for i := range u.states {
		s := &u.states[i]
		if s.from.After(end) || !s.to.IsZero() && s.to.Before(first) {
			continue
		}
		if count++; s.allows(from, to, f) == passed {
			agree++
		}
	}
	switch {
	case agree == 0 && (passed || !excused):
	case agree == count && count > 0:
		if u.tested[passed]++; first.Before(sent.Add(-lag)) {
			u.hard++
		}
		return
	default:
		u.skipped++
		return
	}
	says := map[bool]string{true: "got through, which is forbidden", false: "was refused, which is allowed"}[passed]
	at := func(t time.Time) string { return t.Format("15:04:05.000") }
	go u.violate(policyBreach, fmt.Sprintf("%s of %s (%v, up %s) to %s (%v, up %s), %+v, from %s to %s %s by all %d states since %s\n%s",
		what, from.name, from.Addrs, at(from.up), to.name, to.Addrs, at(to.up), f, at(sent), at(end), says, count, at(first), u.describe(f.Source, f.Destination)))
}

// describe is what the nodes say about a connection now, for people.
func (u *policyUsers) describe(addrs ...netip.Addr) string {
	s := u.states[len(u.states)-1]
	var b strings.Builder
	for name, p := range s.policies {
		fmt.Fprintf(&b, "  policy %s: subject %v, %+v\n", name, p.Subject, p.Policy.Rules)
	}
	for name, labels := range s.namespaces {
		fmt.Fprintf(&b, "  namespace %s: %v\n", name.Name, labels)
	}
	for name, p := range u.pods {
		if slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) }) {
			fmt.Fprintf(&b, "  pod %s: %v\n", name, s.labels[name])
		}
	}
	return b.String()
}

// noticeStalls notes when this process stood still, until stop is closed: the pods' servers are in it, and answered nobody.
func noticeStalls(u *policyUsers, stop <-chan struct{}) {
	for last := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-time.After(tick): // the pace of the watch, not a wait for anything
		}
		now := time.Now()
		if now.Sub(last) > stall {
			u.mu.Lock()
			u.stalls = append(u.stalls, interval{last, now})
			u.mu.Unlock()
		}
		last = now
	}
}

// probe connects from pod to pod until stop is closed.
func (u *policyUsers) probe(ctx context.Context, dice *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond): // the pace of probes, not a wait for anything
		}
		some := func(p *judgedPod) bool { return true }
		if dice.IntN(2) == 0 {
			some = func(p *judgedPod) bool { return p.Namespace == steady }
		}
		from := u.somePod(dice, some)
		to := u.somePod(dice, func(p *judgedPod) bool { return from != nil && p != from && sharesFamily(p, from) && some(p) })
		if to != nil {
			u.connect(ctx, dice, from, to)
		}
	}
}

func sharesFamily(a, b *judgedPod) bool { return len(a.Addrs) > 0 && len(b.Addrs) == len(a.Addrs) }

func (u *policyUsers) connect(ctx context.Context, dice *rand.Rand, from, to *judgedPod) {
	i := dice.IntN(len(to.Addrs))
	f := policy.Flow{Source: from.Addrs[i], Destination: to.Addrs[i], Protocol: unix.IPPROTO_TCP, Port: echo.Port}
	network, stays := "tcp", dice.IntN(4) == 0
	if dice.IntN(2) == 0 {
		network, f.Protocol, stays = "udp", unix.IPPROTO_UDP, false
	}
	one, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	sent := time.Now()
	c, err := echo.Connect(one, from.Inside(), network, netip.AddrPortFrom(f.Destination, f.Port), f.Source)
	if err == nil {
		defer func() { _ = c.Close() }()
		if network == "udp" {
			_, err = c.Ask(one, "probe")
		}
	}
	if ctx.Err() != nil {
		return
	}
	u.judge("a connection", from, to, f, sent, time.Now(), err == nil)
	for began := time.Now(); err == nil && stays && time.Since(began) < 3*time.Second; {
		asked := time.Now()
		if _, err = c.Once("again", attempt); ctx.Err() != nil {
			return
		}
		if err == nil {
			u.judge("a packet of an open connection", from, to, f, asked, time.Now(), true)
		} else { // it may have ended at any time
			u.judge("a packet of an open connection", from, to, f, sent, time.Now(), false)
		}
	}
}

// tick is how soon a program that died is missed.
const tick = 50 * time.Millisecond

// stall is how long this process must stand still for the failure of a connection to say nothing about policies.
const stall = 4 * tick

// calm is how long all programs must run before nodes are expected to catch up, and caughtUp how long that may take.
const (
	calm     = 1500 * time.Millisecond
	caughtUp = time.Minute
)

// watch notes since when programs are missing, or the machine stalls, and until when nodes have caught up.
func (u *policyUsers) watch(ctx context.Context, stop <-chan struct{}) {
	starts := func() (n int, all bool) {
		all = true
		for _, p := range u.mode.programs(u.lab) {
			n += p.Starts()
			all = all && p.Running()
		}
		return n, all
	}
	last, quiet := time.Now(), time.Now()
	before, _ := starts()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-time.After(tick): // the pace of the watch, not a wait for anything
		}
		now, runs := starts()
		u.mu.Lock()
		if time.Since(last) > 10*tick || now != before || !runs || u.making > 0 {
			quiet = time.Now()
			if u.trouble.IsZero() {
				u.trouble = last
			}
		}
		due := !u.trouble.IsZero() && time.Since(quiet) > calm
		u.mu.Unlock()
		last, before = time.Now(), now
		if !due {
			continue
		}
		err := u.catchUp(ctx)
		now, runs = starts()
		u.mu.Lock()
		switch undisturbed := now == before && runs && u.making == 0; {
		case err == nil && undisturbed:
			u.troubles, u.trouble = append(u.troubles, interval{u.trouble, time.Now()}), time.Time{}
		case undisturbed && time.Since(quiet) > caughtUp && ctx.Err() == nil:
			quiet = time.Now()
			go u.violate(disagreement, fmt.Sprintf("nodes have not caught up %v after the last trouble: %v", caughtUp, err))
		}
		u.mu.Unlock()
		last = time.Now()
	}
}

// catchUp keeps everybody from changing anything, and waits a little until nodes enforce what the API has.
func (u *policyUsers) catchUp(ctx context.Context) error {
	u.churn.Lock()
	defer u.churn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return poll.Until(ctx, func() error { return errors.Join(oracle.NetworkPolicies(ctx, u.lab, false)...) })
}

func TestJudgeOfPolicies(t *testing.T) { synctest.Test(t, testJudgeOfPolicies) }

func testJudgeOfPolicies(t *testing.T) {
	at := time.Now()
	second := func(n float64) time.Time { return at.Add(time.Duration(n * float64(time.Second))) }
	pod := func(name, addr string) *judgedPod {
		return &judgedPod{Pod: &node.Pod{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}, name: types.NamespacedName{Namespace: "red", Name: name}, up: at}
	}
	a, b := pod("a", "10.0.0.1"), pod("b", "10.0.0.2")
	f := policy.Flow{Source: a.Addrs[0], Destination: b.Addrs[0], Protocol: unix.IPPROTO_TCP, Port: 80}
	closes := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "closes"}}
	open := clusterState{interval: interval{to: second(10.1)}}
	closed := clusterState{interval: interval{from: second(10)}, policies: map[types.NamespacedName]compile.Compiled{{Namespace: "red", Name: "closes"}: compile.NetworkPolicy(closes)}}
	for what, tt := range map[string]struct {
		sent    float64
		passed  bool
		trouble interval
		reused  float64
		stall   float64
		want    int
	}{
		"let through before":                            {sent: 9, passed: true},
		"refused before":                                {sent: 8, want: 1},
		"let through at once":                           {sent: 10.5, passed: true},
		"refused at once":                               {sent: 10.5},
		"let through late":                              {sent: 11.2, passed: true, want: 1},
		"refused late":                                  {sent: 11.2},
		"let through late, a program is missing":        {sent: 30, passed: true, trouble: interval{from: second(10.5)}},
		"let through late, a program was missing":       {sent: 30, passed: true, trouble: interval{second(10.5), second(29.5)}},
		"let through late, a program was back long ago": {sent: 30, passed: true, trouble: interval{second(10.5), second(28)}, want: 1},
		"refused before, the machine stalled":           {sent: 8, stall: 8.005},
		"refused before, the machine had stalled":       {sent: 8, stall: 7, want: 1},
		"let through late, the machine stalled":         {sent: 11.2, stall: 11.205, passed: true, want: 1},
		"let through, but another pod had the address":  {sent: 30, passed: true, reused: 29.5},
	} {
		r := &round{soak: t.Context(), tally: newTally("test")}
		u := &policyUsers{round: r, states: []clusterState{open, closed}, lost: map[netip.Addr]time.Time{b.Addrs[0]: second(tt.reused)}, tested: map[bool]int{}}
		u.stalls = []interval{{second(tt.stall - 0.3), second(tt.stall)}}
		if u.trouble = tt.trouble.from; !tt.trouble.to.IsZero() {
			u.trouble, u.troubles = time.Time{}, []interval{tt.trouble}
		}
		u.judge(what, a, b, f, second(tt.sent), second(tt.sent+0.01), tt.passed)
		synctest.Wait() // for the violation
		if got := len(r.violations()); got != tt.want {
			t.Errorf("%s: %d violations, want %d", what, got, tt.want)
		}
	}
}

// Of a pod that is younger than a state, the policies count that select it by its labels.
func TestYoungPodsAreJudgedByTheirLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		pod := func(name, addr string) *judgedPod {
			return &judgedPod{
				Pod: &node.Pod{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}, name: types.NamespacedName{Namespace: "red", Name: name},
				labels: map[string]string{"app": "x"}, up: began.Add(10 * time.Second),
			}
		}
		a, b := pod("a", "10.0.0.1"), pod("b", "10.0.0.2")
		closes := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "closes"}}
		closes.Spec.PodSelector.MatchLabels = a.labels
		r := &round{soak: t.Context(), tally: newTally("test")}
		u := &policyUsers{
			round: r, trouble: began, tested: map[bool]int{},
			states: []clusterState{{policies: map[types.NamespacedName]compile.Compiled{{Namespace: "red", Name: "closes"}: compile.NetworkPolicy(closes)}}},
		}
		f := policy.Flow{Source: a.Addrs[0], Destination: b.Addrs[0], Protocol: unix.IPPROTO_TCP, Port: 80}
		u.judge("a connection", a, b, f, began.Add(20*time.Second), began.Add(21*time.Second), false)
		if u.tested[false] != 1 || u.hard != 1 {
			t.Errorf("%d connections rightly refused, %d of them during trouble, and %d undecided, want one of the first", u.tested[false], u.hard, u.skipped)
		}
	})
}
