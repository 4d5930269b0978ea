package egressclients

import (
	"testing"
	"testing/synctest"
	"time"
)

// Replacing a client takes few writes, the new client is served within 200 ms, and a gateway receives slices of its own
// Egress only.
func TestReplacedClients(t *testing.T) {
	const changes = 20
	synctest.Test(t, func(t *testing.T) {
		out, err := run(t.Context(), Order{Pods: 300, Nodes: 100, Clients: 40, Egresses: 2, Changes: changes, PerSecond: 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", out)
		if out.Objects != 2 || out.PodObjects != 300 || out.Bytes <= 0 || out.PodBytes <= 0 {
			t.Errorf("a gateway watches %d objects and receives %v B/s; with pods, %d objects and %v B/s: want 2 and 300 objects", out.Objects, out.Bytes, out.PodObjects, out.PodBytes)
		}
		if out.Known <= 0 || out.Known > 200*time.Millisecond {
			t.Errorf("time until a client was served = %v, want at most 200 ms", out.Known)
		}
		if n := out.Writes["create EgressClient"]; n != changes {
			t.Errorf("%d EgressClients created, want %d: %v", n, changes, out.Writes)
		}
		if out.Served <= 0 || out.Served > time.Second || out.ServedCPU <= 0 || out.ServedWrites < 3*40 || out.ServedWrites > 5*40 {
			t.Errorf("40 clients served after %v with %v of CPU and %d writes, want at most 1 s, and three to five writes each", out.Served, out.ServedCPU, out.ServedWrites)
		}
		// A conflicting write is retried.
		if n := out.Writes["status of EgressClient"]; n > 2*changes+changes/10 {
			t.Errorf("%d status writes of EgressClients, want at most two per client: %v", n, out.Writes)
		}
		if n := out.Writes["update EgressClientSlice"]; n < changes || n > 2*changes {
			t.Errorf("%d updates of slices, want one or two per client: %v", n, out.Writes)
		}
	})
}
