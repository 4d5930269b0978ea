package blocks

import (
	"maps"
	"testing"
)

func TestCountWrites(t *testing.T) {
	const metrics = `# HELP apiserver_request_total Counter of requests.
apiserver_request_total{code="201",component="apiserver",dry_run="",group="berth.dev",resource="addressblocks",scope="resource",subresource="",verb="POST",version="v1alpha1"} 5000
apiserver_request_total{code="409",component="apiserver",dry_run="",group="berth.dev",resource="addressblocks",scope="resource",subresource="",verb="POST",version="v1alpha1"} 2
apiserver_request_total{code="200",component="apiserver",dry_run="",group="berth.dev",resource="addressblocks",scope="cluster",subresource="",verb="LIST",version="v1alpha1"} 7
apiserver_request_total{code="200",component="apiserver",dry_run="",group="berth.dev",resource="blockrequests",scope="resource",subresource="status",verb="PATCH",version="v1alpha1"} 1.2345e+04
apiserver_request_total{code="200",component="apiserver",dry_run="",group="berth.dev",resource="addresspools",scope="resource",subresource="status",verb="PATCH",version="v1alpha1"} 9
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 44
apiserver_request_terminations_total{code="504",resource="addressblocks",verb="POST"} 3
`
	got, err := countWrites(metrics)
	if want := (Writes{"addressblocks": 5002, "blockrequests": 12345, "addresspools": 9}); err != nil || !maps.Equal(got, want) {
		t.Fatalf("got %v, %v, want %v: rejected writes count, reads and leases do not", got, err, want)
	}
	w := got.since(Writes{"addressblocks": 2, "blockrequests": 12345, "addresspools": 5})
	if w.Others() != 5000 || w.Pools() != 4 {
		t.Errorf("%v: %d writes of blocks and requests, %d of the pool, want 5000 and 4", w, w.Others(), w.Pools())
	}
	if _, err := countWrites(`apiserver_request_total{resource="nodes",verb="POST"} many`); err == nil {
		t.Error("countWrites accepted a count that is not a number")
	}
}
