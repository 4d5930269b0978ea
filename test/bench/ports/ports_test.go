package ports

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := run(t.Context(), Order{Pods: 200, Nodes: 10, Latency: 400 * time.Millisecond, AtOnce: 8})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", out)
	})
}
