package networkpolicy

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
)

// A node with many connections does not look at them for each pod, but soon after the last change.
func TestConnectionsAreLookedAtInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		k.mu.Lock()
		k.endTakes = 10 * time.Millisecond
		k.mu.Unlock()
		server := running("server", "10.0.0.1")
		must(t, add(t, one, server))
		sleep(time.Minute)
		k.mu.Lock()
		k.ends = nil
		k.mu.Unlock()
		must(t, one.Set(t.Context(), "server", server))
		sleep(time.Millisecond)
		if k.mu.Lock(); len(k.ends) > 0 {
			t.Error("connections are looked at while pods may start")
		}
		k.mu.Unlock()
		began := time.Now()
		for range 100 {
			must(t, one.Set(t.Context(), "server", server))
			sleep(5 * time.Millisecond)
		}
		last := time.Now()
		sleep(time.Second)
		k.mu.Lock()
		defer k.mu.Unlock()
		if n := len(k.ends); n < 2 || n > 10 {
			t.Errorf("100 changes within %s had connections looked at %d times", last.Sub(began), n)
		}
		if at := k.ends[len(k.ends)-1]; at.Before(last.Add(-5*time.Millisecond)) || at.After(last.Add(100*time.Millisecond)) {
			t.Errorf("connections were looked at last %s after the last change", at.Sub(last))
		}
	})
}

// Pods start while connections are listed, and what policies forbid by then ends, also if it began meanwhile.
func TestPodsStartWhileConnectionsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.fill()
		one, k, _ := c.node("one", t.TempDir())
		sleep(time.Minute)
		server := running("server", "10.0.0.1")
		forbidden := func(port uint16) policytable.Connection {
			return policytable.Connection{Flow: policy.Flow{Source: foreign, Destination: server.Addrs[0], Protocol: 6, Port: port}}
		}
		allowed := policytable.Connection{Flow: policy.Flow{Source: foreign, Destination: foreign, Protocol: 6, Port: 80}}
		k.mu.Lock()
		k.ends, k.endTakes, k.open = nil, time.Second, []policytable.Connection{forbidden(80), allowed}
		k.mu.Unlock()
		c.feed.SetPod(resolved("neighbour", "one")) // connections are listed for it
		sleep(500 * time.Millisecond)
		began := time.Now()
		must(t, add(t, one, server))
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("a pod waits for %s while connections are listed", took)
		}
		k.mu.Lock()
		if len(k.ends) != 1 || len(k.open) != 2 {
			t.Errorf("connections were listed %d times, and %d are open", len(k.ends), len(k.open))
		}
		k.open = append(k.open, forbidden(81))
		k.mu.Unlock()
		sleep(time.Second)
		open := func() []policytable.Connection {
			k.mu.Lock()
			defer k.mu.Unlock()
			return slices.Clone(k.open)
		}
		if got := open(); !slices.Equal(got, []policytable.Connection{allowed, forbidden(81)}) {
			t.Errorf("open after the first look: %v", got)
		}
		sleep(time.Minute)
		if got := open(); !slices.Equal(got, []policytable.Connection{allowed}) {
			t.Errorf("open after the last look: %v", got)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.ends) != 2 {
			t.Errorf("connections were listed %d times, want 2", len(k.ends))
		}
	})
}
