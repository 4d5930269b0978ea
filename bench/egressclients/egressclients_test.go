package egressclients

import (
	"testing"
	"testing/synctest"
	"time"
)

// A client that is replaced by another takes few writes, is known soon, and a gateway is
// sent slices of its own Egress alone.
func TestReplaced(t *testing.T) {
	const changes = 20
	synctest.Test(t, func(t *testing.T) {
		out, err := run(t.Context(), Order{Pods: 300, Clients: 40, Egresses: 2, Changes: changes, PerSecond: 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", out)
		if out.Objects != 2 || out.PodObjects != 300 || out.Bytes <= 0 || out.PodBytes <= 0 {
			t.Errorf("a gateway watches %d objects, is sent %v bytes a second", out.Objects, out.Bytes)
		}
		if out.Known <= 0 || out.Known > 200*time.Millisecond {
			t.Errorf("known after %v", out.Known)
		}
		if n := out.Writes["create EgressClient"]; n != changes {
			t.Errorf("%d EgressClients made: %v", n, out.Writes)
		}
		// One that another overtook is made again.
		if n := out.Writes["status of EgressClient"]; n > 2*changes+changes/10 {
			t.Errorf("%d writes of their status: %v", n, out.Writes)
		}
		if n := out.Writes["update EgressClientSlice"]; n < changes || n > 2*changes {
			t.Errorf("%d writes of slices: %v", n, out.Writes)
		}
	})
}
