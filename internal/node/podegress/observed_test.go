package podegress

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// record is that of pod i, ready.
func record(i int) attachment.Record {
	req := sourcetest.Request(i)
	return attachment.Record{
		Version: attachment.Version, Key: req.Key, Pod: req.Pod, Lease: attachment.Lease{IPv4: addrs(fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))[0]},
		Netns: attachment.Netns{Path: "/run/netns/" + req.Pod.Name}, HostLink: fmt.Sprintf("bth%012d", i), State: attachment.Ready,
		Since: time.Unix(int64(1000+i), 0), InstanceID: "n", BootID: "b",
	}
}

// clientOf is the EgressClient of pod i.
func clientOf(i int, uses ...use) egressClient {
	pod := sourcetest.Request(i).Pod
	return egressClient{name: nameOf(pod), uid: types.UID(fmt.Sprintf("client-%d", i)), pod: pod.UID, uses: uses}
}

// known is a book of an API server that reported all.
func known(list ...egress) *observed {
	b := newObserved("berth-system")
	b.sync.SetListed(true, egressClients, egresses, namespaces)
	b.putNamespace(namespace("internet"))
	for _, t := range list {
		b.putEgress(t)
	}
	return b
}

// namespace is the one of pods, which consents to Egresses of others.
func namespace(consents string) membership.Namespace {
	return membership.Namespace{
		Name: sourcetest.Namespace, Labels: map[string]string{"team": "a"},
		Annotations: map[string]string{v1alpha1.AnnotationEgressSelectableFrom: consents},
	}
}

// granted has a book know that Egresses of namespace internet may select pods of all others.
func granted(b *observed) *observed {
	b.putNamespace(membership.Namespace{Name: "internet", Labels: map[string]string{v1alpha1.LabelEgressMaySelect: "true"}})
	return b
}

// consenting has a book know to which namespaces' Egresses pods' own consents.
func consenting(to string, b *observed) *observed {
	b.putNamespace(namespace(to))
	return b
}

// bySelector is the EgressClient of pod 1 of which the operator says that Egress nat selects it.
func bySelector() egressClient {
	m := clientOf(1, useNamed("nat"))
	m.selected = map[types.NamespacedName]bool{useNamed("nat").name: true}
	return m
}

// naming is a pod that names Egresses of namespace internet.
func naming(i int, names string) attachment.Request {
	req := sourcetest.Request(i)
	req.Options.Annotations = map[string]string{v1alpha1.AnnotationEgressPrefix + "internet": names}
	return req
}

// selecting is an Egress that selects pods of a team's namespaces.
func selecting(team string) egress {
	o := object("nat", 1)
	o.Spec.Clients = &v1alpha1.EgressClientSelector{NamespaceSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"team": v1alpha1.LabelValue(team)}}}
	return readEgress(o)
}

func TestDecide(t *testing.T) {
	nat := egressWith("nat", gatewayNumber(1))
	refusal := v1alpha1.EgressRefusal{Namespace: "internet", Name: "nat", Reason: v1alpha1.EgressNotAllowed, Message: "it does not allow namespace ns", Named: true}
	withRefusal := clientOf(1)
	withRefusal.refused = []v1alpha1.EgressRefusal{refusal}
	foreign := clientOf(1, useNamed("nat"))
	foreign.pod = "of-the-pod-before"
	other := clientOf(1, use{useNamed("nat").name, "of-the-one-before"})
	senseless := object("nat", 1)
	senseless.Spec.Destinations = []string{"x"}
	unlisted, late, away, unknownNamespace, unknownToo := newObserved(""), newObserved(""), newObserved(""), known(selecting("a")), known(selecting("a"))
	many := func() *observed {
		b := known(selecting("a"))
		for i := range membership.MaxSelecting {
			o := object(fmt.Sprintf("older-%d", i), 1)
			o.CreationTimestamp = metav1.Unix(-1e11, 0)
			o.Spec.Clients = &v1alpha1.EgressClientSelector{PodSelector: &v1alpha1.LabelSelector{}}
			b.putEgress(readEgress(o))
		}
		return b
	}
	late.late = true
	away.sync.Set(egresses, errors.New("connection refused"))
	unknownNamespace.egresses.dropNamespace(sourcetest.Namespace)
	unknownToo.egresses.dropNamespace(sourcetest.Namespace)
	with := func(b *observed, m egressClient) *observed { b.putClient(m); return b }
	gateway := sourcetest.Request(1)
	gateway.Options.Annotations = map[string]string{v1alpha1.AnnotationEgressGateway: "true"}
	second := naming(1, "nat")
	second.Key.IfName = "net1"
	nameless := naming(1, "nat")
	nameless.Pod.UID = ""
	for name, tt := range map[string]struct {
		b       *observed
		req     attachment.Request
		waits   string // reason
		refused string // reason
		says    string
		has     int // Egresses; -1: nothing
	}{
		"names none, selected by none":            {b: known(nat), req: sourcetest.Request(1), has: -1},
		"names one, and is a client":              {b: with(known(nat), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), has: 1},
		"names one, the operator said nothing":    {b: known(nat), req: naming(1, "nat"), waits: "no-egressclient", says: "the pod names Egress internet/nat"},
		"names two, the operator said one":        {b: with(known(nat), clientOf(1, useNamed("nat"))), req: naming(1, "nat,web"), waits: "no-egressclient", says: "internet/web"},
		"the pod before of this name":             {b: with(known(nat), foreign), req: naming(1, "nat"), waits: "no-egressclient"},
		"by name, where the runtime tells no UID": {b: with(known(nat), foreign), req: nameless, has: 1},
		"refused":                               {b: with(known(nat), withRefusal), req: naming(1, "nat"), refused: "egress-not-allowed", says: "Egress internet/nat: NotAllowed: it does not allow namespace ns"},
		"selected and refused":                  {b: with(known(selecting("a")), withRefusal), req: sourcetest.Request(1), has: -1},
		"annotation that cannot be":             {b: known(nat), req: naming(1, "Nat"), refused: "egress-annotation", says: "metadata.annotations[egress.berth.dev/internet]"},
		"may be selected":                       {b: known(selecting("a")), req: sourcetest.Request(1), waits: "no-egressclient", says: "Egress internet/nat selects pods of the namespace"},
		"selects other namespaces":              {b: known(selecting("b")), req: sourcetest.Request(1), has: -1},
		"no consent":                            {b: consenting("", known(selecting("a"))), req: sourcetest.Request(1), has: -1},
		"no consent, the operator says one":     {b: with(consenting("dmz", known(selecting("a"))), bySelector()), req: sourcetest.Request(1), has: -1},
		"no consent, and it is named":           {b: with(consenting("", known(selecting("a"))), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), has: 1},
		"no consent, by a grant":                {b: granted(consenting("", known(selecting("a")))), req: sourcetest.Request(1), waits: "no-egressclient"},
		"one of too many":                       {b: many(), req: sourcetest.Request(1), has: -1},
		"one of too many, with a grant":         {b: granted(many()), req: sourcetest.Request(1), waits: "no-egressclient"},
		"selected, and it consents":             {b: with(known(selecting("a")), bySelector()), req: sourcetest.Request(1), has: 1},
		"selected, namespace not known":         {b: with(unknownToo, bySelector()), req: sourcetest.Request(1), has: 1},
		"selected":                              {b: with(known(selecting("a")), clientOf(1, useNamed("nat"))), req: sourcetest.Request(1), has: 1},
		"may be selected, and is not":           {b: with(known(selecting("a")), clientOf(1)), req: sourcetest.Request(1), has: -1},
		"namespace not known yet":               {b: unknownNamespace, req: sourcetest.Request(1), waits: "starting", says: "namespace ns"},
		"nothing known yet":                     {b: unlisted, req: sourcetest.Request(1), waits: "starting"},
		"nothing known for long":                {b: late, req: sourcetest.Request(1), has: -1},
		"nothing known for long, and names one": {b: late, req: naming(1, "nat"), waits: "starting"},
		"API server away":                       {b: away, req: naming(1, "nat"), waits: "unreachable", says: "connection refused"},
		"Egress not reported yet":               {b: with(known(), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), waits: "egress-unknown"},
		"Egress made again":                     {b: with(known(nat), other), req: naming(1, "nat"), waits: "egress-unknown", says: "of-the-one-before"},
		"Egress that cannot be":                 {b: with(known(readEgress(senseless)), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), waits: "egress-invalid", says: "spec.destinations"},
		"gateway":                               {b: known(nat), req: gateway, has: 0},
		"second interface":                      {b: known(nat), req: second, has: -1},
	} {
		t.Run(name, func(t *testing.T) {
			v := tt.b.decide(tt.req)
			reason := func(e *source.Exhausted) string {
				if e == nil {
					return ""
				}
				if !strings.Contains(e.Message, tt.says) {
					t.Errorf("it says %q", e.Message)
				}
				return e.Reason
			}
			if reason(v.wait) != tt.waits || reason(v.err) != tt.refused {
				t.Errorf("waits %+v, refused %+v", v.wait, v.err)
			}
			if tt.waits+tt.refused != "" {
				return
			}
			if has := v.egress; tt.has < 0 && has != nil || tt.has >= 0 && (has == nil || len(has.Egresses) != tt.has || has.Forward != (tt.has == 0)) {
				t.Errorf("it has %+v", v.egress)
			}
		})
	}
}

// follow sets an attachment up as desired, once.
func (o *observed) follow(t *testing.T, rec attachment.Record) attachment.Record {
	t.Helper()
	if desired, differs := o.desired(rec); differs {
		rec.Egress = desired
		o.setUp(rec)
		if _, again := o.desired(rec); again {
			t.Errorf("%s is to have yet another egress", rec.Pod.Name)
		}
	}
	return rec
}

// A change has only those running pods compared that it concerns.
func TestChangesConcernOnlyTheirPods(t *testing.T) {
	b := known(egressWith("nat", gatewayNumber(1)), egressWith("web", gatewayNumber(2)))
	recs := map[int]attachment.Record{}
	for i, name := range map[int]string{1: "nat", 2: "web", 3: ""} {
		m := clientOf(i)
		if name != "" {
			m.uses = []use{useNamed(name)}
			b.putClient(m)
		}
		rec := record(i)
		rec.Egress = b.decide(sourcetest.Request(i)).egress
		b.setUp(rec)
		recs[i] = rec
	}
	touched := func() (list []int) {
		b.effects.changed = false
		for i := 1; i <= 3; i++ {
			if b.pods[nameOf(recs[i].Pod)].settled == nil {
				list = append(list, i)
			}
			recs[i] = b.follow(t, recs[i])
		}
		return list
	}
	is := func(what string, want ...int) {
		t.Helper()
		if news := b.effects.changed; news != (len(want) > 0) {
			t.Errorf("%s: news %t", what, news)
		}
		if got := touched(); !slices.Equal(got, want) {
			t.Errorf("%s: looked at %v, want %v", what, got, want)
		}
	}
	touched()
	b.putEgress(egressWith("nat", gatewayNumber(1), gatewayNumber(3)))
	is("a gateway of nat came", 1)
	if n := len(recs[1].Egress.Egresses[0].Gateways); n != 2 {
		t.Errorf("pod 1 has %d gateways", n)
	}
	b.putEgress(egressWith("nat", gatewayNumber(1), gatewayNumber(3)))
	is("nat is as it was")
	b.putClient(clientOf(3, useNamed("web")))
	is("pod 3 became a client", 3)
	b.putEgress(egressWith("web", gatewayNumber(4)))
	is("the gateway of web is another", 2, 3)
	b.dropEgress(useNamed("web").name, "")
	is("web is deleted", 2, 3)
	if n := len(recs[2].Egress.Egresses); n != 1 {
		t.Errorf("the operator says still that pod 2 uses it, and it has %d", n)
	}
	again := egressWith("web", gatewayNumber(5))
	again.uid = "made-again"
	b.putEgress(again)
	is("web is made again", 2, 3)
	b.putClient(clientOf(2, use{useNamed("web").name, "made-again"}))
	is("the operator says so", 2)
	if u := recs[2].Egress.Egresses[0]; u.UID != "made-again" || u.Gateways[0].UID != gatewayNumber(5).uid {
		t.Errorf("pod 2 has %+v", u)
	}
	b.dropClient(nameOf(recs[1].Pod), "")
	is("pod 1 is a client no more", 1)
	if got := recs[1].Egress; got == nil || len(got.Egresses) > 0 {
		t.Errorf("pod 1 has %+v", got)
	}
	b.silence(map[use]silentOnes{useNamed("web"): {"gw-0005": true}})
	is("a gateway of another of the name is silent", 2, 3)
}

// An Egress that selects a running pod is taken from it, and given back, as its namespace and that
// of the Egress say, whatever the operator says meanwhile; one that it names is not.
func TestConsentWhilePodsRun(t *testing.T) {
	b := known(selecting("a"))
	b.putClient(bySelector())
	b.putClient(clientOf(2, useNamed("nat")))
	recs := map[int]attachment.Record{}
	for i, req := range map[int]attachment.Request{1: sourcetest.Request(1), 2: naming(2, "nat")} {
		rec := record(i)
		rec.Egress = b.decide(req).egress
		b.setUp(rec)
		recs[i] = rec
	}
	has := func(what string, want int) {
		t.Helper()
		if !b.effects.changed {
			t.Errorf("%s: nobody is to look", what)
		}
		b.effects.changed = false
		for i, n := range map[int]int{1: want, 2: 1} {
			recs[i] = b.follow(t, recs[i])
			if got := len(recs[i].Egress.Egresses); got != n {
				t.Errorf("%s: pod %d has %d Egresses, want %d", what, i, got, n)
			}
		}
		b.effects.changed = false
	}
	b.effects.changed = true
	has("it consents", 1)
	b.putNamespace(namespace("dmz"))
	has("it consents to others", 0)
	granted(b)
	has("an administrator lets them", 1)
	b.putNamespace(membership.Namespace{Name: "internet"})
	has("and lets them no more", 0)
	b.putNamespace(namespace("*"))
	has("it consents to all", 1)
	b.putEgress(selecting("b"))
	has("it selects others", 0)
	b.putEgress(selecting("a"))
	has("it selects this one again", 1)
	if b.putEgress(selecting("a")); b.effects.changed {
		t.Error("one that is as it was is looked at")
	}
	b.dropEgress(useNamed("nat").name, "")
	has("it is gone, and its pods' packets go no other way", 1)
}

// Before the API server has reported what there is, nothing is taken from a pod.
func TestNothingChangesBeforeTheFirstList(t *testing.T) {
	rec := record(1)
	rec.Egress = known(egressWith("nat", gatewayNumber(1))).decide(naming(1, "")).egress
	has := planned(rec.Pod.UID, nil, nil, egressWith("nat", gatewayNumber(1)))
	rec.Egress = &has
	for _, what := range []string{egressClients, egresses} {
		b := known()
		b.sync.SetListed(false, what)
		if got, differ := b.desired(rec); differ {
			t.Errorf("without %s: %+v", what, got)
		}
	}
	if got, differ := known().desired(rec); !differ || len(got.Egresses) > 0 {
		t.Errorf("got %+v", got)
	}
	rec.Key.IfName = "net1"
	if _, differ := known().desired(rec); differ {
		t.Error("a second interface is to have something")
	}
}

func TestStatusOfAnEgressClient(t *testing.T) {
	b := known(egressWith("nat", gatewayNumber(1)), egressWith("web", gatewayNumber(2)))
	m := clientOf(1, useNamed("nat"))
	b.putClient(m)
	nat, web := useNamed("nat").ref(), useNamed("web").ref()
	rec := record(1)
	rec.Lease.IPv6 = addrs("fd00::1")[0]
	e := planned(rec.Pod.UID, nil, nil, egressWith("nat", gatewayNumber(1)))
	both := planned(rec.Pod.UID, nil, nil, egressWith("nat", gatewayNumber(1)), egressWith("web", gatewayNumber(2)))
	changing := both
	changing.State = attachment.EgressChanging
	say := func(what string, want *v1alpha1.EgressClientNode) {
		t.Helper()
		m := b.clients[m.name]
		got := b.state(m)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", what, d)
		}
		if got != nil { // it is heard
			m.node = got
			b.putClient(m)
			if again := b.state(m); again != nil {
				t.Errorf("%s: it is said again: %+v", what, again)
			}
		}
	}
	up := func(egresses ...v1alpha1.EgressReference) *v1alpha1.EgressClientNode {
		return &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: rec.Key.ContainerID, Addresses: []string{"10.0.0.2", "fd00::1"}, Egresses: egresses}
	}
	say("nothing is here", nil)
	rec.Egress = &e
	b.setUp(rec)
	say("it is set up", up(nat))
	rec.Egress = &changing
	b.setUp(rec)
	say("it changes", nil)
	rec.Egress = &both
	b.fail(rec, fmt.Errorf("wrapped: %w", tunnel.ErrNoFoU))
	failed := up()
	failed.State, failed.Reason, failed.Message = v1alpha1.EgressClientFailed, "NoFoU", "wrapped: "+tunnel.ErrNoFoU.Error()
	failed.Egresses = []v1alpha1.EgressReference{nat, web} // what changed was reported to be set up last
	say("it cannot be", failed)
	b.fail(rec, errors.New("no\nmémory"+strings.Repeat("x", 1000)))
	failed.Reason, failed.Message = "SetUpFailed", source.ASCII("no\nmémory"+strings.Repeat("x", 1000), 512)
	say("it cannot be for another reason", failed)
	b.setUp(rec)
	say("it could be", up(nat, web))
	rec.Egress = nil
	b.setUp(rec)
	say("a client no more", up())

	// A sandbox follows another.
	later := rec
	later.Key.ContainerID, later.Since, later.Egress = "c1-again", rec.Since.Add(time.Second), &e
	b.setUp(later)
	want := up(nat)
	want.ContainerID = "c1-again"
	say("its next sandbox", want)
	b.end(rec)
	say("the former is gone", nil)
	b.end(later)
	say("all are gone", &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientGone, ContainerID: "c1-again"})
	b.end(later)
	say("it was heard", nil)
	if len(b.pods) != 0 {
		t.Errorf("left are %v", b.pods)
	}

	// A pod that is nobody's client is not reported, unless it was one.
	none := clientOf(2)
	b.putClient(none)
	b.setUp(record(2))
	if got := b.state(b.clients[none.name]); got != nil {
		t.Errorf("of nobody's client it says %+v", got)
	}
	// Another pod of the name has the EgressClient by now.
	m.pod, m.uid = "another", "client-of-another"
	b.putClient(m)
	rec.Egress = &e
	b.setUp(rec)
	if got := b.state(m); got != nil {
		t.Errorf("of another pod it says %+v", got)
	}
}

func TestReportsUntilTheStatusShowsThem(t *testing.T) {
	b := known(egressWith("nat", gatewayNumber(1)))
	e := planned("uid-1", nil, nil, egressWith("nat", gatewayNumber(1)))
	for i := range 3 {
		b.putClient(clientOf(i, useNamed("nat")))
		rec := record(i)
		rec.Egress = &e
		b.setUp(rec)
	}
	for range 2 {
		if list := b.due(); len(list) != 3 || len(b.unreported) != 3 {
			t.Fatalf("due are %v", list)
		}
	}
	one := b.due()[0]
	m := b.clients[one.Name]
	m.node = &one.State
	b.putClient(m)
	if list := b.due(); len(list) != 2 || b.unreported[one.Name] {
		t.Errorf("due are %v after the watch showed one", list)
	}
	for i := range 3 {
		if nameOf(record(i).Pod) == one.Name {
			b.end(record(i))
		}
	}
	if list := b.due(); len(list) != 3 {
		t.Errorf("due are %v after one ended", list)
	}
	// Somebody else wrote over a status, and an EgressClient is gone.
	m.node = nil
	b.putClient(m)
	if b.due(); b.unreported[m.name] {
		t.Error("an ended pod of which the status says nothing is reported")
	}
	for name := range b.clients {
		b.dropClient(name, "")
	}
	if list := b.due(); len(list) != 0 {
		t.Errorf("due are %v without EgressClients", list)
	}
}
