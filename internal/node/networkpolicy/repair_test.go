package networkpolicy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/source"
)

// A node restores what other software changes in the kernel: at once when it is told, and at an interval. It counts, and logs at
// most once a minute.
func TestForeignChangesAreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		registry := prometheus.NewRegistry()
		var log bytes.Buffer
		one, k, stop := c.nodeWith("one", t.TempDir(), func(o *Options) {
			o.Interval, o.Metrics, o.Log = time.Minute, NewMetrics(registry), slog.New(slog.NewTextHandler(&log, nil))
		})
		server := running("server", "10.0.0.1")
		must(t, add(t, one, server))
		sleep(10 * time.Minute)
		if n := value(t, registry, "berth_network_policy_repairs_total"); n != 0 {
			t.Errorf("%v repairs although nothing was changed", n)
		}
		for range 5 {
			k.flush()
			sleep(time.Second)
			if k.lets(foreign, server.Addrs[0]) {
				t.Fatal("what other software removed is not restored")
			}
		}
		k.mu.Lock()
		k.pods, k.sets = nil, nil // without a word
		k.mu.Unlock()
		sleep(time.Minute)
		if k.lets(foreign, server.Addrs[0]) {
			t.Error("what other software removed is not restored after the interval")
		}
		k.foreign <- "" // nothing was changed, perhaps
		sleep(time.Second)
		if n := value(t, registry, "berth_network_policy_repairs_total"); n != 6 {
			t.Errorf("%v repairs, want 6", n)
		}
		stop()
		if n := strings.Count(log.String(), "other software changed"); n != 2 {
			t.Errorf("logged %d times: %s", n, &log)
		}
	})
}

// value is the value of a counter or gauge without labels.
func value(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Pods that run when policies are switched on keep what they have until the operator speaks, also when their tunnels change.
func TestRunningPodsWaitForTheOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.server.Stop()
		dir := t.TempDir()
		one, k, stop := c.node("one", dir)
		server, stranger := running("server", "10.0.0.1"), running("stranger", "10.0.0.3")
		one.Restore(map[string]Pod{"server": server, "stranger": stranger})
		sleep(time.Hour)
		if k.pods != nil {
			t.Error("the kernel was changed before anything is known")
		}
		server.Tunnels = []netip.AddrPort{netip.MustParseAddrPort("10.9.0.1:5555")}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		must(t, one.Set(soon, "server", server))
		c.start()
		c.fill()
		sleep(time.Minute)
		if k.lets(foreign, server.Addrs[0]) || k.lets(foreign, stranger.Addrs[0]) {
			t.Error("policies are not in force, or a pod is open that nobody knows")
		}
		c.server.Stop()
		stop()

		// A file that does not know a pod which runs: it was written before policies were switched off for a while.
		one, k, _ = c.node("one", dir)
		another := running("another", "10.0.0.4")
		one.Restore(map[string]Pod{"server": server, "another": another})
		another.Tunnels = server.Tunnels
		must(t, one.Set(t.Context(), "another", another))
		sleep(time.Minute)
		if k.lets(foreign, server.Addrs[0]) || !k.lets(foreign, another.Addrs[0]) {
			t.Error("policies of the file are not in force, or a pod is closed about which nothing is known")
		}
		c.start()
		c.fill()
		sleep(time.Minute)
		if k.lets(foreign, another.Addrs[0]) {
			t.Error("a pod is open that the operator does not know")
		}
	})
}

// With StartUnknown, pods are open until the operator has told about them, and closed when it knows them no more.
func TestUnknownPodsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.server.Stop()
		one, k, _ := c.nodeWith("one", t.TempDir(), func(o *Options) { o.StartUnknown = true })
		server := running("server", "10.0.0.1")
		must(t, one.Set(t.Context(), "server", server))
		if !k.lets(foreign, server.Addrs[0]) {
			t.Error("a pod is closed about which nothing is known")
		}
		c.start()
		sleep(time.Minute)
		if !k.lets(foreign, server.Addrs[0]) {
			t.Error("a pod is closed that the operator does not know")
		}
		c.fill()
		sleep(time.Second)
		if k.lets(foreign, server.Addrs[0]) {
			t.Error("policies are not in force once they are known")
		}
		c.feed.DeletePod(resolved("server", "one").NamespacedName)
		sleep(time.Second)
		if k.lets(foreign, server.Addrs[0]) {
			t.Error("a pod is open that the operator knows no more")
		}
	})
}

// Pods and policies are stored at once, sets after a while and at the end; a folder that cannot be written costs a line of the log.
func TestStoring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		dir := t.TempDir()
		var log bytes.Buffer
		one, _, stop := c.nodeWith("one", dir, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		must(t, add(t, one, running("server", "10.0.0.1")))
		stored := func() string {
			data, err := os.ReadFile(filepath.Join(dir, fileName))
			must(t, err)
			return string(data)
		}
		sleep(time.Second) // the operator answers to the pod's address
		before := stored()
		sleep(time.Minute)
		if stored() != before {
			t.Error("stored again although nothing changed")
		}
		client := c.addClient()
		sleep(time.Second)
		if stored() == before {
			t.Error("a change of a small set is not stored within a second")
		}
		before = stored()
		c.feed.DeletePod(client.NamespacedName)
		sleep(time.Second)
		stop()
		if stored() == before {
			t.Error("a change of a set is not stored at the end")
		}
		if there, err := Discard(dir); !there || err != nil {
			t.Errorf("discarded: %t, %v", there, err)
		}
		if there, err := Discard(dir); there || err != nil {
			t.Errorf("discarded again: %t, %v", there, err)
		}
		blocked := filepath.Join(dir, "blocked")
		must(t, os.WriteFile(blocked, nil, 0o600))
		log.Reset()
		_, _, stop = c.nodeWith("one", blocked, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		sleep(time.Hour)
		stop()
		if n := strings.Count(log.String(), "cannot be stored"); n != 1 {
			t.Errorf("logged %d times: %s", n, &log)
		}
	})
}

// When the file cannot be written, an old one does not undo after a restart what is in force.
func TestOldFilesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.feed.SetPod(resolved("another", "one"))
		dir := t.TempDir()
		one, _, stop := c.node("one", dir)
		must(t, add(t, one, running("another", "10.0.0.4")))
		sleep(time.Minute)
		must(t, os.Mkdir(filepath.Join(dir, "."+fileName+".new"), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "."+fileName+".new", "blocks"), nil, 0o600))
		c.fill()
		server := running("server", "10.0.0.1")
		must(t, add(t, one, server))
		c.server.Stop()
		stop()
		one, k, _ := c.node("one", dir)
		one.Restore(map[string]Pod{"server": server})
		sleep(time.Minute)
		if k.pods != nil {
			t.Error("the kernel's policies were replaced by old ones")
		}
	})
}

// The condition says what is wrong, and metrics for how long.
func TestCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.server.Stop()
		var log lockedBuffer
		one, k, stop := c.nodeWith("one", t.TempDir(), func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		wants := func(healthy bool, says string) {
			t.Helper()
			if c := one.Condition(); c.Healthy != healthy || !strings.HasPrefix(c.Reason+": "+c.Message, says) {
				t.Errorf("%+v, want %s", c, says)
			}
		}
		gauge := func(name string) (v float64) {
			t.Helper()
			var snap source.Snapshot
			one.Describe(&snap, 3)
			registry := prometheus.NewRegistry()
			registry.MustRegister(collected(snap.Detail.Metrics()))
			families, err := registry.Gather()
			must(t, err)
			for _, f := range families {
				if f.GetName() == name {
					for _, m := range f.GetMetric() {
						v += m.GetGauge().GetValue()
					}
					return v
				}
			}
			t.Fatalf("no metric %s", name)
			return 0
		}
		unused := New(Options{Kernel: &kernel{}, Dir: t.TempDir(), Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler)})
		if c := unused.Condition(); c.Healthy || c.Reason != "Starting" {
			t.Errorf("%+v before it has asked the operator, want Starting", c)
		}
		sleep(time.Hour)
		wants(false, "Unknown: berth-operator has not sent this node any network policies yet: ")
		if away := gauge("berth_network_policy_operator_away_seconds"); away != 3600 {
			t.Errorf("away for %v s", away)
		}
		c.start()
		c.fill()
		sleep(20 * time.Second)
		must(t, add(t, one, running("server", "10.0.0.1")))
		sleep(time.Minute)
		wants(true, "InForce")
		if gauge("berth_network_policy_operator_away_seconds") != 0 || gauge("berth_network_policy_operator_connected") != 1 || gauge("berth_network_policy_pods") != 1 ||
			gauge("berth_network_policy_sets") != 1 || gauge("berth_network_policy_waiting_adds") != 3 {
			t.Error("metrics are wrong")
		}
		log.Reset()
		c.server.Stop()
		c.start()
		c.fill()
		sleep(30 * time.Second)
		wants(true, "InForce")
		if log.String() != "" {
			t.Errorf("a new operator is logged: %s", &log)
		}
		c.server.Stop()
		sleep(30 * time.Second)
		wants(true, "InForce")
		sleep(time.Hour)
		wants(false, "OperatorAway: the network policies that berth-operator sent before ")
		c.start()
		c.fill()
		sleep(time.Minute)
		if n := strings.Count(log.String(), "\n"); n > 4 {
			t.Errorf("an outage took %d lines: %s", n, &log)
		}
		k.fails(errors.New("ENOMEM"))
		c.feed.SetPod(resolved("stranger", "one"))
		sleep(time.Minute)
		wants(false, "NotInForce: the kernel has rejected changes of network policies since ")
		if failing := gauge("berth_network_policy_failing_seconds"); failing < 59 || failing > 60 {
			t.Errorf("failing for %v s", failing)
		}
		stop()
		if n := strings.Count(log.String(), "not all network policies are in force"); n != 1 {
			t.Errorf("logged %d times: %s", n, &log)
		}
	})
}

// lockedBuffer is a log that is read while others write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// collected are metrics for a registry.
type collected []prometheus.Metric

func (collected) Describe(chan<- *prometheus.Desc) {}

func (c collected) Collect(to chan<- prometheus.Metric) {
	for _, m := range c {
		to <- m
	}
}

// The file has everything, however large it is.
func TestLargeStatesAreStoredLater(t *testing.T) {
	for size, want := range map[int]time.Duration{0: 0, storeRate / 4: 250 * time.Millisecond, 3 * storeRate: 3 * time.Second, 100 * storeRate: storeDelay} {
		if got := (&stored{size: size}).delay(); got != want {
			t.Errorf("a file of %d bytes: changes of sets wait %v, want %v", size, got, want)
		}
	}
}

func TestStoredStateIsWhole(t *testing.T) {
	u := &policy.Update{Version: 7, Whole: true, Pods: map[policy.PodName]*policy.Selected{}, Policies: map[policy.Ref]*policy.Policy{}, Sets: policy.SetChanges{}}
	for i := range 3000 {
		ref := policy.Ref{Namespace: "default", Name: fmt.Sprint(strings.Repeat("a", 200), i)}
		p := &policy.Policy{Ref: ref, Tier: policy.Namespaced}
		id := policy.SetID(fmt.Sprint("set-", i))
		p.Rules[policy.Ingress] = []policy.Rule{{Action: policy.Accept, AnyPort: true, Peers: []policy.SetID{id}}}
		u.Policies[ref] = p
		u.Pods[policy.PodName(ref)] = &policy.Selected{UID: "uid", Policies: []policy.Ref{ref}}
		u.Sets.Of(id).Note(policy.Element{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}, true)
	}
	state := policy.NewState()
	state.Take(u)
	f := stored{dir: t.TempDir(), clock: clock.Real{}, log: slog.New(slog.DiscardHandler), state: state}
	f.write()
	again := policy.NewState()
	again.Take(f.load())
	for name, p := range u.Pods {
		if list, known := again.Of(name, "uid"); !known || len(list) != 1 || list[0].Ref != p.Policies[0] {
			t.Fatalf("%v has %v", name, list)
		}
	}
	for id, change := range u.Sets {
		for e := range change.Elements {
			if again.Size(id) != 1 || !again.Has(id, e) {
				t.Fatalf("set %s lacks %v", id, e)
			}
		}
	}
}
