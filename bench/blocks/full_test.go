package blocks

import (
	"testing"
	"testing/synctest"
)

// Nodes that join a cluster get a block each.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := runFull(t.Context(), FullOrder{Nodes: 20, BlocksOfNode: 10, Joining: 20})
		if err != nil || out.CPU <= 0 {
			t.Errorf("runFull() = %+v, %v, want the CPU time", out, err)
		}
	})
}
