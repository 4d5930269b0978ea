package podegress

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podegress/egressfake"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcenode"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// The roles and policies are those of a node that has no other use of the API.
func TestMain(m *testing.M) {
	os.Exit(harness.Kube(m.Run, func() error {
		release := deploy.InMode(deploy.NodeMode, "test")
		release.Values["egress"] = map[string]any{"enabled": true}
		objects, err := deploy.Render(release)
		if err != nil {
			return err
		}
		return harness.ControlPlane.ApplyObjects(context.Background(), objects.Access())
	}))
}

// machine is a node whose daemon's clients can be stopped and started again, and the
// operator's hand.
type machine struct {
	*sourcenode.Node
	*Clients
	operator client.Client
	kernel   *egressfake.Kernel
	stop     func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{Node: sourcenode.New(t), operator: harness.KubeClientFor(t, sourcenode.Config(t, "berth-operator", sourcenode.Name)), kernel: egressfake.NewKernel(nil)}
	for _, name := range []string{"internet", sourcetest.Namespace} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": "a"}}}
		if err := m.API.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	return m
}

// start starts clients on a node with attachments that are ready. They end with the test at the
// latest.
func (m *machine) start(ready ...attachment.Record) {
	m.T.Helper()
	api, err := kubeapi.New(m.Config)
	harness.OK(m.T, err)
	m.Clients, err = newClients(Config{NodeName: sourcenode.Name, Kernel: m.kernel, Port: 5555, Logger: sourcetest.Logger(m.Log)}, api)
	harness.OK(m.T, err)
	m.Restore(ready)
	m.stop = sourcetest.Run(m.T, m.Clients)
}

// egress makes an Egress, and says as the operator which gateways it has.
func (m *machine) egress(name string, gateways ...int) *v1alpha1.Egress {
	m.T.Helper()
	o := object(name)
	o.UID = ""
	m.Create(o)
	m.gateways(o, gateways...)
	return o
}

func (m *machine) gateways(o *v1alpha1.Egress, gateways ...int) {
	m.T.Helper()
	m.status(o, map[string]any{"gateways": object("", gateways...).Status.Gateways})
}

// status writes a part of a status as the operator.
func (m *machine) status(o client.Object, part map[string]any) {
	m.T.Helper()
	body, err := json.Marshal(map[string]any{"status": part})
	harness.OK(m.T, err)
	harness.OK(m.T, m.operator.Status().Patch(m.T.Context(), o, client.RawPatch(types.MergePatchType, body)))
}

func refTo(o *v1alpha1.Egress) v1alpha1.EgressReference {
	return v1alpha1.EgressReference{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)}
}

// client makes the EgressClient of pod i, as the operator.
func (m *machine) client(i int, node string, egresses ...v1alpha1.EgressReference) *v1alpha1.EgressClient {
	m.T.Helper()
	pod := sourcetest.Request(i).Pod
	o := &v1alpha1.EgressClient{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: types.UID(pod.UID)}}},
		Spec:       v1alpha1.EgressClientSpec{PodUID: pod.UID, NodeName: node, Egresses: egresses},
	}
	harness.OK(m.T, m.operator.Create(m.T.Context(), o))
	return o
}

// edit changes the spec of an EgressClient as the operator.
func (m *machine) edit(o *v1alpha1.EgressClient, spec map[string]any) {
	m.T.Helper()
	body, err := json.Marshal(map[string]any{"spec": spec})
	harness.OK(m.T, err)
	harness.OK(m.T, m.operator.Patch(m.T.Context(), o, client.RawPatch(types.MergePatchType, body)))
}

// says waits until an EgressClient says this of the node.
func (m *machine) says(o *v1alpha1.EgressClient, state v1alpha1.EgressClientState, egresses int) (now *v1alpha1.EgressClient) {
	m.T.Helper()
	now = &v1alpha1.EgressClient{}
	m.Until(fmt.Sprintf("EgressClient %s says %s with %d Egresses", o.Name, state, egresses), func() bool {
		if m.API.Get(m.T.Context(), client.ObjectKeyFromObject(o), now) != nil {
			return false
		}
		n := now.Status.Node
		return n != nil && n.State == state && len(n.Egresses) == egresses
	}, func() string { return fmt.Sprintf("it says %+v", now.Status.Node) })
	return now
}

// add is an ADD.
func (m *machine) add(i int, names string) attachment.Record {
	m.T.Helper()
	ctx, cancel := context.WithTimeout(m.T.Context(), sourcenode.Longest)
	defer cancel()
	rec := record(i)
	var err error
	rec.Egress, err = m.Acquire(ctx, naming(i, names))
	harness.OK(m.T, err)
	harness.OK(m.T, m.Apply(ctx, rec))
	m.SetUp(rec)
	return rec
}

// follow brings a running pod to what it is to have, once it is to have something else, as the
// daemon does.
func (m *machine) follow(rec attachment.Record, what string, is func(*attachment.Egress) bool) attachment.Record {
	m.T.Helper()
	m.Until(what, func() bool {
		if wanted, differ := m.Desired(rec); differ {
			rec.Egress = wanted
			harness.OK(m.T, m.Apply(m.T.Context(), rec))
			m.SetUp(rec)
		}
		return is(rec.Egress)
	}, func() string { return fmt.Sprintf("it has %+v", rec.Egress) })
	return rec
}

func TestLifeOfAClient(t *testing.T) {
	m := newMachine(t)
	m.start()
	nat, web := m.egress("nat", 1), m.egress("web", 2)
	var rec attachment.Record
	done := make(chan struct{})
	go func() {
		defer close(done)
		rec = m.add(1, "nat")
	}()
	m.Until("the ADD waits", func() bool {
		why := m.Why(sourcetest.Key(1))
		return why != nil && why.Reason == "no-egressclient"
	}, func() string { return fmt.Sprintf("%+v", m.Why(sourcetest.Key(1))) })
	of := m.client(1, sourcenode.Name, refTo(nat))
	<-done
	if e := rec.Egress; e == nil || len(e.Egresses) != 1 || e.Egresses[0].UID != string(nat.UID) || len(e.Egresses[0].Gateways) != 1 {
		t.Fatalf("it has %+v", e)
	}
	got := m.says(of, v1alpha1.EgressClientSetUp, 1)
	if n := got.Status.Node; n.ContainerID != rec.Key.ContainerID || !slices.Equal(n.Addresses, texts(rec.OwnAddrs())) || n.Egresses[0] != refTo(nat) {
		t.Errorf("it says %+v", n)
	}
	if f := got.ManagedFields; !slices.ContainsFunc(f, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == v1alpha1.OwnerDaemon && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "status"
	}) {
		t.Errorf("it was written by %+v", f)
	}

	// While it runs.
	m.gateways(nat, 1, 3)
	rec = m.follow(rec, "a gateway came", func(e *attachment.Egress) bool { return len(e.Egresses[0].Gateways) == 2 })
	m.edit(of, map[string]any{"egresses": []v1alpha1.EgressReference{refTo(nat), refTo(web)}})
	rec = m.follow(rec, "it is a client of another besides", func(e *attachment.Egress) bool { return len(e.Egresses) == 2 })
	m.says(of, v1alpha1.EgressClientSetUp, 2)

	// The operator says that one selects it, and whether it may its namespace says.
	patch := func(o client.Object, body string) {
		t.Helper()
		harness.OK(t, m.API.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(body))))
	}
	consents := func(to string) {
		t.Helper()
		patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: sourcetest.Namespace}}, `{"metadata":{"annotations":{"berth.dev/egress-selectable-from":`+to+`}}}`)
	}
	patch(web, `{"spec":{"clients":{"namespaceSelector":{"matchLabels":{"team":"a"}}}}}`)
	m.edit(of, map[string]any{"selected": []string{"internet/web"}})
	rec = m.follow(rec, "its namespace does not let the other", func(e *attachment.Egress) bool { return len(e.Egresses) == 1 })
	consents(`"internet"`)
	rec = m.follow(rec, "its namespace lets it", func(e *attachment.Egress) bool { return len(e.Egresses) == 2 })
	m.says(of, v1alpha1.EgressClientSetUp, 2)
	m.Failed(rec, fmt.Errorf("no memory"))
	if n := m.says(of, v1alpha1.EgressClientFailed, 2).Status.Node; n.Reason != reasonFailed || n.Message != "no memory" {
		t.Errorf("it says %+v", n)
	}
	m.edit(of, map[string]any{"egresses": nil, "selected": nil, "refused": []v1alpha1.EgressRefusal{{Namespace: "internet", Name: "nat", Reason: "NotFound", Message: "there is none", Named: true}}})
	rec = m.follow(rec, "it is a client no more", func(e *attachment.Egress) bool { return e == nil || len(e.Egresses) == 0 })
	if n := m.says(of, v1alpha1.EgressClientSetUp, 0).Status.Node; n.Reason+n.Message != "" {
		t.Errorf("it says %+v", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), sourcenode.Longest)
	defer cancel()
	if e, err := m.Acquire(ctx, naming(1, "nat")); err == nil || !strings.Contains(err.Error(), "Egress internet/nat: NotFound: there is none") {
		t.Errorf("an ADD of a pod that is refused got %+v, %v", e, err)
	}
	m.Ended(rec)
	if n := m.says(of, v1alpha1.EgressClientGone, 0).Status.Node; n.ContainerID != rec.Key.ContainerID || len(n.Addresses) > 0 {
		t.Errorf("it says %+v", n)
	}
}

// After a restart it is said again only what differs: that a sandbox went meanwhile.
func TestRestart(t *testing.T) {
	m := newMachine(t)
	m.start()
	nat := m.egress("nat", 1)
	var recs []attachment.Record
	var clients []*v1alpha1.EgressClient
	for i := range 3 {
		of := m.client(i, sourcenode.Name, refTo(nat))
		recs = append(recs, m.add(i, "nat"))
		clients = append(clients, m.says(of, v1alpha1.EgressClientSetUp, 1))
	}
	m.stop()
	m.gateways(nat, 1, 2)
	changing := recs[1]
	e := *changing.Egress
	e.State = attachment.EgressChanging
	changing.Egress = &e
	m.start(recs[0], changing)
	m.says(clients[2], v1alpha1.EgressClientGone, 0)
	m.follow(recs[0], "what came meanwhile", func(e *attachment.Egress) bool { return len(e.Egresses[0].Gateways) == 2 })
	for _, was := range clients[:2] {
		if is := m.says(was, v1alpha1.EgressClientSetUp, 1); is.ResourceVersion != was.ResourceVersion {
			t.Errorf("%s was written again, and says %+v", was.Name, is.Status.Node)
		}
	}
}

// An EgressClient of another node, or of another pod of the name, is nobody's here; and a node's
// token says nothing of others.
func TestForeignClients(t *testing.T) {
	m := newMachine(t)
	m.start()
	nat := m.egress("nat", 1)
	foreign := m.client(1, "node-2", refTo(nat))
	m.client(2, sourcenode.Name, refTo(nat)) // which shows that the watch is there
	m.add(2, "nat")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if e, err := m.Acquire(ctx, naming(1, "nat")); err == nil {
		t.Errorf("by another node's EgressClient a pod has %+v", e)
	}
	rec := record(1)
	m.SetUp(rec)
	now := &v1alpha1.EgressClient{}
	harness.OK(t, m.API.Get(t.Context(), client.ObjectKeyFromObject(foreign), now))
	if now.Status.Node != nil {
		t.Errorf("of another node's pod it says %+v", now.Status.Node)
	}
	err := m.write(t.Context(), report{Name: kubeapi.NameOf(foreign), UID: foreign.UID, Version: foreign.ResourceVersion, State: v1alpha1.EgressClientNode{State: v1alpha1.EgressClientGone}})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a node's token wrote of another's pod: %v", err)
	}
	own := nameOf(sourcetest.Request(2).Pod)
	if err := m.write(t.Context(), report{Name: own, UID: "another", Version: foreign.ResourceVersion, State: v1alpha1.EgressClientNode{State: v1alpha1.EgressClientGone}}); !apierrors.IsConflict(err) {
		t.Errorf("it wrote of another EgressClient of the name: %v", err)
	}
}

// An Egress whose status makes no sense in part ends nothing, and is reported once.
func TestInvalidGatewaysAreIgnored(t *testing.T) {
	m := newMachine(t)
	nat := m.egress("nat", 1)
	garbage := []v1alpha1.EgressGateway{
		{Name: "a", UID: "a", Addresses: []string{"224.0.0.1"}}, {Name: "b", UID: "b", Addresses: []string{"127.0.0.1"}}, {Name: "c", UID: "c", Addresses: []string{"nonsense"}},
		{Name: "d", UID: "d", Addresses: []string{"10.9.0.77"}}, {Name: "e", UID: "e", Addresses: []string{"10.9.0.77"}}, {Name: "f", UID: "f", Addresses: texts(record(1).OwnAddrs())},
	}
	m.status(nat, map[string]any{"gateways": garbage})
	m.client(1, sourcenode.Name, refTo(nat))
	m.start()
	m.add(1, "nat")
	if g := m.kernel.Clients()[record(1).Netns.Path].Egresses[0].Gateways; len(g) != 1 || g[0].Addrs[0] != addrs("10.9.0.77")[0] {
		t.Errorf("set up are %+v", g)
	}
	for range 3 {
		m.status(nat, map[string]any{"clients": time.Now().UnixNano() % 1000})
	}
	m.gateways(nat, 1)
	m.Until("what is right", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.observed.egresses.byName[kubeapi.NameOf(nat)].err == nil
	}, func() string { return "" })
	if n := m.Log.Count("invalid fields"); n != 1 {
		t.Errorf("it was reported %d times", n)
	}
}
