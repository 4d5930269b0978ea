package ports

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestRun(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("PODS"))
	for _, o := range []Order{{}, {Scheduled: 50}, {Late: time.Minute}, {Naive: true}} {
		o.Pods, o.Nodes, o.Latency, o.AtOnce = n, 100, 400*time.Millisecond, 8
		synctest.Test(t, func(t *testing.T) {
			out, err := run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", o)
			t.Logf("%+v", out)
		})
	}
}
