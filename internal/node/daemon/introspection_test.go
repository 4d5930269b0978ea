package daemon

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// told is a source that says what a test has it say.
type told struct {
	source.Source
	snap source.Snapshot
}

func (s told) Snapshot() source.Snapshot { return s.snap }

// only is what a source has to tell that no other has.
type only struct{ block introspect.Block }

func (o only) Describe(doc *introspect.Document) { doc.Blocks = append(doc.Blocks, o.block) }

func (o only) Metrics() []prometheus.Metric {
	return []prometheus.Metric{metric.New("berth_only", "gauge", "help").Value(7)}
}

// What a source says of itself is in the document, in the metrics and among the
// conditions, and the daemon knows nothing of it.
func TestSourceDescribesItself(t *testing.T) {
	d := newNode(t, "10.0.0.5").assemble()
	now := d.Clock.Now()
	at := func(a string, state source.State, o introspect.Origin) source.AddressInfo {
		return source.AddressInfo{Addr: netip.MustParseAddr(a), Origin: o, State: state, Since: now}
	}
	web, def := introspect.Origin{Pool: "web", Block: "web-0"}, introspect.Origin{Pool: "default", Block: "default-7"}
	block := introspect.Block{Name: "web-0", Pool: "web", Capacity: 4096, Used: 1, Free: 4095}
	d.inspector.node.IPAM, d.IPAM = "pool", "pool"
	d.Source = told{d.Source, source.Snapshot{
		Groups: []source.Group{{Name: "web-0", Capacity: 4096}, {Name: "default-7", Capacity: 4}},
		Addresses: []source.AddressInfo{
			at("10.2.0.0", source.Used, def), at("10.2.0.1", source.Cooling, def), at("10.2.0.2", source.Withdrawn, def),
			at("10.3.0.0", source.Used, web), at("10.3.0.9", source.Warm, web), at("10.9.0.2", source.Cooling, introspect.Origin{}),
		},
		Count:      map[source.State]int{source.Used: 3, source.Warm: 4095, source.Cooling: 2, source.Withdrawn: 2},
		Waiting:    1,
		Conditions: []source.Condition{{Type: "BlocksRouted", Reason: "NotRouted", Message: "block web-0: file exists"}},
		Detail:     only{block},
	}}
	d.supply.source, d.attachments.source = d.Source, d.Source
	d.supply.look(false)
	doc := d.inspector.document()
	same := func(what string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	same("totals", doc.Totals, introspect.Totals{Allocated: 3, Available: 4095, Cooling: 2, Withdrawn: 2, Capacity: 4100, Waiting: 1})
	same("ENIs", doc.ENIs, []introspect.ENI{})
	same("pools", doc.Pools, []introspect.Pool{})
	same("blocks", doc.Blocks, []introspect.Block{block})
	same("available", doc.Available, []introspect.Available{{Address: netip.MustParseAddr("10.3.0.9"), Origin: web}})
	left := d.Source.CoolingPeriod()
	cooling := func(a string, o introspect.Origin) introspect.Cooling {
		return introspect.Cooling{Address: netip.MustParseAddr(a), Origin: o,
			Since: now.UTC(), Until: now.Add(left).UTC(), RemainingSeconds: left.Round(time.Millisecond).Seconds()}
	}
	same("cooling", doc.Cooling, []introspect.Cooling{cooling("10.2.0.1", def), cooling("10.9.0.2", introspect.Origin{})})
	d.conditions.want(t, "BlocksRouted", false, "NotRouted: block web-0: file exists")
	families, err := d.Metrics.Registry.Gather()
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "berth_only" })
	if err != nil || i < 0 || families[i].Metric[0].Gauge.GetValue() != 7 {
		t.Errorf("the source's own metric is not there: %v", err)
	}
}
