package policies

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A new pod's address is in force on every node within 50 ms and its kernel's time, a deleted policy is out of force on
// every node likewise, and a replaced pod concerns the nodes of the pods that allow it only.
func TestSmallClusters(t *testing.T) {
	for want, o := range map[int]Order{
		60: {Workload: Told, Nodes: 20, Enforcers: 20, Changes: 3},
		20: {Workload: Deleted, Nodes: 20, Enforcers: 5},
		0:  {Workload: Events, Nodes: 20, Changes: 100},
	} {
		o.Pods, o.Policies, o.Kernel, o.End = 1600, 10, time.Millisecond, 10*time.Millisecond
		synctest.Test(t, func(t *testing.T) {
			out, err := run(t.Context(), o)
			if err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
			if len(out.Took) != want || want > 0 && slices.Max(out.Took) > 50*time.Millisecond+o.Kernel {
				t.Errorf("%+v: took %v, expected %d times within 50 ms and the kernel's", o, out.Took, want)
			}
			// Of four kinds of pods, those of one are told to the 20 nodes with the pods that allow them, and those of another to their own.
			if o.Workload == Events && (out.Told < 5 || out.Told > 10) {
				t.Errorf("a replaced pod is told to %.1f nodes", out.Told)
			}
		})
	}
}
