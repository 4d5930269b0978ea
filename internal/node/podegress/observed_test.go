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

// record returns the ready record of pod i.
func record(i int) attachment.Record {
	req := sourcetest.Request(i)
	return attachment.Record{
		Version: attachment.Version, Key: req.Key, Pod: req.Pod, Lease: attachment.Lease{IPv4: addrs(fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))[0]},
		Netns: attachment.Netns{Path: "/run/netns/" + req.Pod.Name}, HostLink: fmt.Sprintf("bth%012d", i), State: attachment.Ready,
		Since: time.Unix(int64(1000+i), 0), InstanceID: "n", BootID: "b",
	}
}

// clientOf returns the EgressClient of pod i.
func clientOf(i int, uses ...use) egressClient {
	pod := sourcetest.Request(i).Pod
	return egressClient{name: nameOf(pod), uid: types.UID(fmt.Sprintf("client-%d", i)), pod: pod.UID, uses: uses}
}

// known returns the observed state after the API server has listed everything.
func known(list ...egress) *observed {
	b := newObserved("berth-system")
	b.sync.SetListed(true, egressClients, egresses, namespaces)
	b.putNamespace(namespace("internet"))
	for _, t := range list {
		b.putEgress(t)
	}
	return b
}

// namespace returns the namespace of the pods, which permits Egresses of other namespaces.
func namespace(consents string) membership.Namespace {
	return membership.Namespace{
		Name: sourcetest.Namespace, Labels: map[string]string{"team": "a"},
		Annotations: map[string]string{v1alpha1.AnnotationEgressSelectableFrom: consents},
	}
}

// granted lets Egresses of namespace internet select pods of all other namespaces.
func granted(b *observed) *observed {
	b.putNamespace(membership.Namespace{Name: "internet", Labels: map[string]string{v1alpha1.LabelEgressMaySelect: "true"}})
	return b
}

// consenting sets the namespaces whose Egresses the pods' namespace permits.
func consenting(to string, b *observed) *observed {
	b.putNamespace(namespace(to))
	return b
}

// bySelector returns the EgressClient of pod 1, which according to the operator Egress nat selects.
func bySelector() egressClient {
	m := clientOf(1, useNamed("nat"))
	m.selected = map[types.NamespacedName]bool{useNamed("nat").name: true}
	return m
}

// naming returns the request of a pod that names Egresses of namespace internet.
func naming(i int, names string) attachment.Request {
	req := sourcetest.Request(i)
	req.Options.Annotations = map[string]string{v1alpha1.AnnotationEgressPrefix + "internet": names}
	return req
}

// selecting returns an Egress that selects pods of a team's namespaces.
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
	ofCoil := func(coil bool) egress {
		o := object("nat", 1)
		if coil {
			o.Annotations = map[string]string{v1alpha1.AnnotationCoilClients: "true"}
		}
		trimEgress(o)
		return readEgress(o)
	}
	namingForCoil := sourcetest.Request(1)
	namingForCoil.Options.Annotations = map[string]string{v1alpha1.AnnotationCoilEgressPrefix + "internet": "nat"}
	for name, tt := range map[string]struct {
		b       *observed
		req     attachment.Request
		waits   string // expected reason of a wait
		refused string // expected reason of a rejection
		says    string
		has     int // number of Egresses; -1: no egress
	}{
		"names one for Coil, no EgressClient":   {b: known(ofCoil(true)), req: namingForCoil, waits: "no-egressclient", says: "the pod names Egress internet/nat"},
		"names one for Coil, and is a client":   {b: with(known(ofCoil(true)), clientOf(1, useNamed("nat"))), req: namingForCoil, has: 1},
		"names one for Coil that has none":      {b: known(ofCoil(false)), req: namingForCoil, has: -1},
		"names one for Coil, nothing known":     {b: late, req: namingForCoil, waits: "starting"},
		"names none, selected by none":          {b: known(nat), req: sourcetest.Request(1), has: -1},
		"names one, and is a client":            {b: with(known(nat), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), has: 1},
		"names one, no EgressClient":            {b: known(nat), req: naming(1, "nat"), waits: "no-egressclient", says: "the pod names Egress internet/nat"},
		"names two, EgressClient has one":       {b: with(known(nat), clientOf(1, useNamed("nat"))), req: naming(1, "nat,web"), waits: "no-egressclient", says: "internet/web"},
		"EgressClient of an earlier pod":        {b: with(known(nat), foreign), req: naming(1, "nat"), waits: "no-egressclient"},
		"runtime passes no UID":                 {b: with(known(nat), foreign), req: nameless, has: 1},
		"refused":                               {b: with(known(nat), withRefusal), req: naming(1, "nat"), refused: "egress-not-allowed", says: "Egress internet/nat: NotAllowed: it does not allow namespace ns"},
		"selected and refused":                  {b: with(known(selecting("a")), withRefusal), req: sourcetest.Request(1), has: -1},
		"invalid annotation":                    {b: known(nat), req: naming(1, "Nat"), refused: "egress-annotation", says: "metadata.annotations[egress.berth.dev/internet]"},
		"may be selected":                       {b: known(selecting("a")), req: sourcetest.Request(1), waits: "no-egressclient", says: "Egress internet/nat selects pods of the namespace"},
		"selects other namespaces":              {b: known(selecting("b")), req: sourcetest.Request(1), has: -1},
		"no consent":                            {b: consenting("", known(selecting("a"))), req: sourcetest.Request(1), has: -1},
		"no consent, operator selects another":  {b: with(consenting("dmz", known(selecting("a"))), bySelector()), req: sourcetest.Request(1), has: -1},
		"no consent, named":                     {b: with(consenting("", known(selecting("a"))), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), has: 1},
		"no consent, granted":                   {b: granted(consenting("", known(selecting("a")))), req: sourcetest.Request(1), waits: "no-egressclient"},
		"too many selectors":                    {b: many(), req: sourcetest.Request(1), has: -1},
		"too many selectors, granted":           {b: granted(many()), req: sourcetest.Request(1), waits: "no-egressclient"},
		"selected, namespace consents":          {b: with(known(selecting("a")), bySelector()), req: sourcetest.Request(1), has: 1},
		"selected, namespace unknown":           {b: with(unknownToo, bySelector()), req: sourcetest.Request(1), has: 1},
		"selected":                              {b: with(known(selecting("a")), clientOf(1, useNamed("nat"))), req: sourcetest.Request(1), has: 1},
		"may be selected, but is not":           {b: with(known(selecting("a")), clientOf(1)), req: sourcetest.Request(1), has: -1},
		"namespace unknown yet":                 {b: unknownNamespace, req: sourcetest.Request(1), waits: "starting", says: "namespace ns"},
		"nothing known yet":                     {b: unlisted, req: sourcetest.Request(1), waits: "starting"},
		"nothing known for long":                {b: late, req: sourcetest.Request(1), has: -1},
		"nothing known for long, and names one": {b: late, req: naming(1, "nat"), waits: "starting"},
		"API server unreachable":                {b: away, req: naming(1, "nat"), waits: "unreachable", says: "connection refused"},
		"Egress not listed yet":                 {b: with(known(), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), waits: "egress-unknown"},
		"Egress recreated":                      {b: with(known(nat), other), req: naming(1, "nat"), waits: "egress-unknown", says: "of-the-one-before"},
		"invalid Egress":                        {b: with(known(readEgress(senseless)), clientOf(1, useNamed("nat"))), req: naming(1, "nat"), waits: "egress-invalid", says: "spec.destinations"},
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
					t.Errorf("message = %q, want text %q", e.Message, tt.says)
				}
				return e.Reason
			}
			if reason(v.wait) != tt.waits || reason(v.err) != tt.refused {
				t.Errorf("wait = %+v, error = %+v; want reasons %q, %q", v.wait, v.err, tt.waits, tt.refused)
			}
			if tt.waits+tt.refused != "" {
				return
			}
			if has := v.egress; tt.has < 0 && has != nil || tt.has >= 0 && (has == nil || len(has.Egresses) != tt.has || has.Forward != (tt.has == 0)) {
				t.Errorf("egress = %+v, want %d Egresses", v.egress, tt.has)
			}
		})
	}
}

// follow sets up the desired egress of an attachment.
func (o *observed) follow(t *testing.T, rec attachment.Record) attachment.Record {
	t.Helper()
	if desired, differs := o.desired(rec); differs {
		rec.Egress = desired
		o.setUp(rec)
		if _, again := o.desired(rec); again {
			t.Errorf("desired egress of %s differs again after it was set up", rec.Pod.Name)
		}
	}
	return rec
}

// A change triggers comparisons of the affected running pods only.
func TestChangesAffectOnlyConcernedPods(t *testing.T) {
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
			t.Errorf("%s: change announced = %t, want %t", what, news, len(want) > 0)
		}
		if got := touched(); !slices.Equal(got, want) {
			t.Errorf("%s: compared pods = %v, want %v", what, got, want)
		}
	}
	touched()
	b.putEgress(egressWith("nat", gatewayNumber(1), gatewayNumber(3)))
	is("gateway of nat added", 1)
	if n := len(recs[1].Egress.Egresses[0].Gateways); n != 2 {
		t.Errorf("pod 1 has %d gateways, want 2", n)
	}
	b.putEgress(egressWith("nat", gatewayNumber(1), gatewayNumber(3)))
	is("nat unchanged")
	b.putClient(clientOf(3, useNamed("web")))
	is("pod 3 became a client", 3)
	b.putEgress(egressWith("web", gatewayNumber(4)))
	is("gateway of web replaced", 2, 3)
	b.dropEgress(useNamed("web").name, "")
	is("web deleted", 2, 3)
	if n := len(recs[2].Egress.Egresses); n != 1 {
		t.Errorf("pod 2 has %d Egresses, want 1 while its EgressClient lists web", n)
	}
	again := egressWith("web", gatewayNumber(5))
	again.uid = "made-again"
	b.putEgress(again)
	is("web recreated", 2, 3)
	b.putClient(clientOf(2, use{useNamed("web").name, "made-again"}))
	is("EgressClient updated", 2)
	if u := recs[2].Egress.Egresses[0]; u.UID != "made-again" || u.Gateways[0].UID != gatewayNumber(5).uid {
		t.Errorf("egress of pod 2 = %+v, want the new web", u)
	}
	b.dropClient(nameOf(recs[1].Pod), "")
	is("EgressClient of pod 1 deleted", 1)
	if got := recs[1].Egress; got == nil || len(got.Egresses) > 0 {
		t.Errorf("egress of pod 1 = %+v, want no Egresses", got)
	}
	b.silence(map[use]silentOnes{useNamed("web"): {"gw-0005": true}})
	is("gateway of the former web silent", 2, 3)
}

// A running pod loses and regains an Egress that selects it as permitted by its namespace and the Egress's
// namespace, regardless of the operator. An Egress that it names is not affected.
func TestConsentOfRunningPods(t *testing.T) {
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
			t.Errorf("%s: no change announced", what)
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
	has("namespace consents", 1)
	b.putNamespace(namespace("dmz"))
	has("namespace consents to others", 0)
	granted(b)
	has("administrator grants selection", 1)
	b.putNamespace(membership.Namespace{Name: "internet"})
	has("administrator revokes the grant", 0)
	b.putNamespace(namespace("*"))
	has("namespace consents to all", 1)
	b.putEgress(selecting("b"))
	has("Egress selects other pods", 0)
	b.putEgress(selecting("a"))
	has("Egress selects the pod again", 1)
	if b.putEgress(selecting("a")); b.effects.changed {
		t.Error("an unchanged Egress announced a change")
	}
	b.dropEgress(useNamed("nat").name, "")
	has("Egress deleted; its pods' packets must not take another path", 1)
}

// Before the API server has listed everything, pods lose nothing.
func TestNothingChangesBeforeTheFirstList(t *testing.T) {
	rec := record(1)
	rec.Egress = known(egressWith("nat", gatewayNumber(1))).decide(naming(1, "")).egress
	has := planned(rec.Pod.UID, nil, nil, egressWith("nat", gatewayNumber(1)))
	rec.Egress = &has
	for _, what := range []string{egressClients, egresses} {
		b := known()
		b.sync.SetListed(false, what)
		if got, differ := b.desired(rec); differ {
			t.Errorf("desired() before %s were listed = %+v, want no difference", what, got)
		}
	}
	if got, differ := known().desired(rec); !differ || len(got.Egresses) > 0 {
		t.Errorf("desired() = %+v, want no Egresses", got)
	}
	rec.Key.IfName = "net1"
	if _, differ := known().desired(rec); differ {
		t.Error("desired() of a second interface differs, want no egress")
	}
}

func TestEgressClientStatus(t *testing.T) {
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
			t.Errorf("%s: status (-want +got):\n%s", what, d)
		}
		if got != nil { // the watch shows the written status
			m.node = got
			b.putClient(m)
			if again := b.state(m); again != nil {
				t.Errorf("%s: reported again: %+v", what, again)
			}
		}
	}
	up := func(egresses ...v1alpha1.EgressReference) *v1alpha1.EgressClientNode {
		return &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: rec.Key.ContainerID, Addresses: []string{"10.0.0.2", "fd00::1"}, Egresses: egresses}
	}
	say("no attachment", nil)
	rec.Egress = &e
	b.setUp(rec)
	say("set up", up(nat))
	rec.Egress = &changing
	b.setUp(rec)
	say("being changed", nil)
	rec.Egress = &both
	b.fail(rec, fmt.Errorf("wrapped: %w", tunnel.ErrNoFoU))
	failed := up()
	failed.State, failed.Reason, failed.Message = v1alpha1.EgressClientFailed, "NoFoU", "wrapped: "+tunnel.ErrNoFoU.Error()
	failed.Egresses = []v1alpha1.EgressReference{nat, web} // the last completed setup had both
	say("failed", failed)
	b.fail(rec, errors.New("no\nmémory"+strings.Repeat("x", 1000)))
	failed.Reason, failed.Message = "SetUpFailed", source.ASCII("no\nmémory"+strings.Repeat("x", 1000), 512)
	say("failed for another reason", failed)
	b.setUp(rec)
	say("recovered", up(nat, web))
	rec.Egress = nil
	b.setUp(rec)
	say("no longer a client", up())

	// A new sandbox replaces the former one.
	later := rec
	later.Key.ContainerID, later.Since, later.Egress = "c1-again", rec.Since.Add(time.Second), &e
	b.setUp(later)
	want := up(nat)
	want.ContainerID = "c1-again"
	say("next sandbox", want)
	b.end(rec)
	say("former sandbox ended", nil)
	b.end(later)
	say("all sandboxes ended", &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientGone, ContainerID: "c1-again"})
	b.end(later)
	say("report seen", nil)
	if len(b.pods) != 0 {
		t.Errorf("pods = %v, want none", b.pods)
	}

	// A pod that never was a client is not reported.
	none := clientOf(2)
	b.putClient(none)
	b.setUp(record(2))
	if got := b.state(b.clients[none.name]); got != nil {
		t.Errorf("state of a pod without Egresses = %+v, want nil", got)
	}
	// The EgressClient belongs to another pod with the same name now.
	m.pod, m.uid = "another", "client-of-another"
	b.putClient(m)
	rec.Egress = &e
	b.setUp(rec)
	if got := b.state(m); got != nil {
		t.Errorf("state for another pod's EgressClient = %+v, want nil", got)
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
			t.Fatalf("due() = %v, want 3 reports", list)
		}
	}
	one := b.due()[0]
	m := b.clients[one.Name]
	m.node = &one.State
	b.putClient(m)
	if list := b.due(); len(list) != 2 || b.unreported[one.Name] {
		t.Errorf("due() after the watch showed one status = %v, want 2 reports", list)
	}
	for i := range 3 {
		if nameOf(record(i).Pod) == one.Name {
			b.end(record(i))
		}
	}
	if list := b.due(); len(list) != 3 {
		t.Errorf("due() after one pod ended = %v, want 3 reports", list)
	}
	// Another writer overwrote a status, and an EgressClient was deleted.
	m.node = nil
	b.putClient(m)
	if b.due(); b.unreported[m.name] {
		t.Error("an ended pod without a reported status is reported")
	}
	for name := range b.clients {
		b.dropClient(name, "")
	}
	if list := b.due(); len(list) != 0 {
		t.Errorf("due() without EgressClients = %v, want none", list)
	}
}
