package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/daemon/policypart"
	"github.com/berthnet/berth/internal/node/networkpolicy"
	"github.com/berthnet/berth/internal/node/networkpolicy/operatorfake"
	"github.com/berthnet/berth/internal/operator/networkpolicy/feed"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
)

// policed is a machine whose pods have network policies.
type policed struct {
	*machine
	operator *operatorfake.Operator
	table    *policytable.Table
	wait     time.Duration
}

func newPoliced(t *testing.T) *policed {
	p := &policed{machine: newMachine(t, 8), operator: operatorfake.New(t), wait: 10 * time.Second}
	handle, err := netns.GetFromPath(p.path)
	must(t, err)
	t.Cleanup(func() { _ = handle.Close() })
	p.table = policytable.New(handle)
	token := filepath.Join(p.dir, "token")
	must(t, os.WriteFile(token, []byte("node-1"), 0o600))
	log := slog.New(slog.DiscardHandler)
	p.parts = func(store *attachment.Store, m *Metrics) []part.Part {
		metrics := networkpolicy.NewMetrics(m.Registry)
		e := networkpolicy.New(networkpolicy.Options{
			Kernel: policytable.New(handle), Dial: networkpolicy.Access{Namespace: "kube-system", ConfigMap: p.operator.ConfigMap, TokenFile: token}.Dial,
			Dir: p.dir, Interval: time.Minute, Metrics: metrics, Clock: clock.Real{}, Log: log,
		})
		return []part.Part{policypart.New(policypart.Options{Enforcer: e, Store: store, Wait: p.wait, Metrics: metrics, Log: log})}
	}
	return p
}

// clientsOnly is a cluster in which only the pod client may reach the pod server.
func clientsOnly(pods ...string) *feed.Feed {
	f := feed.New()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "clients-only"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "server"}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}}
	f.SetPolicy(compile.NetworkPolicy(p))
	for _, name := range pods {
		f.SetPod(resolve.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID("uid-" + name), Node: "node-1", Labels: map[string]string{"app": name}})
	}
	return f
}

// realPod is a pod in a namespace.
type realPod struct {
	t    *testing.T
	path string
	addr netip.Addr
}

// add is the ADD of a pod in a namespace.
func (p *policed) add(s *started, name, path string) (realPod, error) {
	rec, err := s.attachments.add(context.Background(), attachment.Record{
		Key: keyFor(name), Netns: attachment.Netns{Path: path}, Pod: attachment.Pod{Namespace: "default", Name: name, UID: "uid-" + name},
	}, attachment.PodOptions{})
	return realPod{p.t.(*testing.T), path, rec.Lease.IPv4}, err
}

func (p *policed) added(s *started, name string) realPod {
	p.t.Helper()
	pod, err := p.add(s, name, mustSpace(p.t))
	must(p.t, err)
	return pod
}

// listen accepts connections at port 80, which are echoed.
func (p realPod) listen() {
	p.t.Helper()
	var l net.Listener
	must(p.t, ns.Do(p.path, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(p.addr, 80).String())
		return err
	}))
	p.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buffer := make([]byte, 1)
				for {
					if _, err := c.Read(buffer); err != nil {
						return
					}
					if _, err := c.Write(buffer); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// firstTry is less than the time after which TCP sends its first packet again.
const firstTry = 700 * time.Millisecond

func (p realPod) dial(to realPod) (c net.Conn, err error) {
	err = ns.Do(p.path, func() error {
		c, err = net.DialTimeout("tcp", netip.AddrPortFrom(to.addr, 80).String(), firstTry)
		return err
	})
	return c, err
}

// reaches tells whether the first packet of a connection gets through.
func (p realPod) reaches(to realPod) bool {
	p.t.Helper()
	c, err := p.dial(to)
	if err == nil {
		_ = c.Close()
		return true
	}
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		p.t.Errorf("%s to %s: %v, want an answer of the pod or none", p.addr, to.addr, err)
	}
	return false
}

// echoes tells whether a connection works.
func echoes(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, err := c.Write([]byte{1})
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return err == nil
}

// probe tries to reach a pod until the returned function is called, which tells whether that never succeeded.
func (p realPod) probe(to realPod) (never func() bool) {
	ctx, cancel := context.WithCancel(p.t.Context())
	reached := make(chan bool, 1)
	go func() {
		for ctx.Err() == nil {
			if p.reaches(to) {
				reached <- true
				return
			}
		}
		reached <- false
	}()
	return func() bool {
		cancel()
		return !<-reached
	}
}

// ADDs return with the policies of their pods in force, in the kernel. They stay in force while the daemon restarts and the
// operator is away, and are restored when other software removes them.
func TestPoliciesOfRealPods(t *testing.T) {
	p := newPoliced(t)
	p.operator.Start(clientsOnly("server", "client", "stranger", "later"))
	s := p.start(time.Hour)
	server := p.added(s, "server")
	server.listen()
	client := p.added(s, "client")
	if !client.reaches(server) {
		t.Error("the first packet of a client that is allowed is dropped")
	}
	stranger := p.added(s, "stranger")
	if stranger.reaches(server) {
		t.Error("a stranger reaches the server")
	}
	s.repairer.lookAtForwarding(t.Context())
	s.conditions.want(t, ConditionForwarding, true, "") // the table is no foreign packet filter
	p.wait = 100 * time.Millisecond

	never := stranger.probe(server)
	open, err := client.dial(server)
	must(t, err)
	p.operator.Stop()
	s.stop()
	s = p.start(time.Hour)
	later := p.added(s, "later")
	if later.reaches(server) || !client.reaches(server) || !echoes(open) {
		t.Error("policies are not in force after a restart without the operator")
	}
	path := mustSpace(t)
	if _, err := p.add(s, "unknown", path); err == nil || cnierror.Of(err).Reason != "policies-unknown" ||
		!strings.Contains(err.Error(), "berth-operator has not sent this node the network policies of pod default/unknown; it has not been connected since") {
		t.Errorf("the ADD of a pod that nobody knows: %v", err)
	}
	if !never() {
		t.Error("a stranger reached the server during a restart of the daemon")
	}

	for _, what := range []string{"flush ruleset", "delete table inet " + policytable.Name, "flush chain inet " + policytable.Name + " judge-ingress", "flush map inet " + policytable.Name + " ingress4"} {
		out, err := exec.Command("nsenter", append([]string{"--net=" + p.path, "nft"}, strings.Fields(what)...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		began := time.Now()
		waitFor(t, func() bool { return !stranger.reaches(server) })
		t.Logf("%s: repaired within %s", what, time.Since(began))
		if !client.reaches(server) || !echoes(open) {
			t.Errorf("%s: a client that is allowed does not reach the server", what)
		}
	}
	must(t, open.Close())
	if n := repairs(t, s); n < 4 || n > 8 { // its own changes would be taken for others' again and again
		t.Errorf("%v repairs of 4 changes by other software", n)
	}

	p.operator.Start(clientsOnly("server", "client", "stranger", "later", "unknown"))
	p.wait = 10 * time.Second
	s.stop()
	s = p.start(time.Hour)
	if unknown, err := p.add(s, "unknown", path); err != nil || unknown.reaches(server) {
		t.Errorf("once the operator is back: %v", err)
	}
	must(t, s.attachments.del(context.Background(), keyFor("client")))
	if again := p.added(s, "client"); !again.reaches(server) {
		t.Error("a client that was replaced does not reach the server")
	}
}

// Policies that are switched on under running pods come into force once the operator speaks, and not before. Allowed connections go
// on, others end.
func TestPoliciesOfPodsThatRunAlready(t *testing.T) {
	p := newPoliced(t)
	on := p.parts
	p.parts = nil
	s := p.start(time.Hour)
	server, client, stranger := p.added(s, "server"), p.added(s, "client"), p.added(s, "stranger")
	server.listen()
	allowed, err := client.dial(server)
	must(t, err)
	forbidden, err := stranger.dial(server)
	must(t, err)
	if !echoes(allowed) || !echoes(forbidden) {
		t.Fatal("pods without policies do not reach each other")
	}
	s.stop()
	p.parts = on
	s = p.start(time.Hour)
	reason := func() string {
		s.supply.look(false)
		c, _ := s.conditions.get(networkpolicy.ConditionReady)
		return c.Reason
	}
	waitFor(t, func() bool { return reason() == "Unknown" })
	s.conditions.want(t, networkpolicy.ConditionReady, false, "Unknown: berth-operator has not sent this node any network policies yet: ConfigMap")
	if there, err := p.table.There(); there || err != nil || !stranger.reaches(server) || !echoes(forbidden) {
		t.Errorf("policies are in force before anybody knows them: %v", err)
	}
	f := clientsOnly("server", "client", "stranger")
	for name, pod := range map[string]realPod{"server": server, "client": client, "stranger": stranger} { // as the pods' status has them
		known := resolve.Pod{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID("uid-" + name), Node: "node-1", Labels: map[string]string{"app": name}}
		known.Addrs = []netip.Addr{pod.addr}
		f.SetPod(known)
	}
	p.operator.Start(f)
	waitFor(t, func() bool { return !stranger.reaches(server) })
	if !echoes(allowed) || !client.reaches(server) {
		t.Error("an allowed connection ended")
	}
	if echoes(forbidden) {
		t.Error("a connection goes on that policies forbid")
	}
	if reason() != "InForce" {
		t.Errorf("the condition says %s", reason())
	}
	_, _ = allowed.Close(), forbidden.Close()
}

// repairs is how often policies were restored.
func repairs(t *testing.T, s *started) float64 {
	t.Helper()
	families, err := s.Metrics.Registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "berth_network_policy_repairs_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no such metric")
	return 0
}
