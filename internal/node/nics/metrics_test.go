package nics

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugfake"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// snapshot is what NICs add to a source's.
func (n *NICs) snapshot() (s source.Snapshot) {
	n.Describe(&s)
	return s
}

// gauges are metrics of NICs as the daemon serves them.
type gauges struct{ *NICs }

func (gauges) Describe(chan<- *prometheus.Desc) {}
func (g gauges) Collect(to chan<- prometheus.Metric) {
	for _, m := range g.snapshot().Detail.Metrics() {
		to <- m
	}
}

func TestMetrics(t *testing.T) {
	n, err := newNICs(Config{
		NodeName: nodeID, Plugger: plugfake.NewNode().Open(nil), Switch: &fakeSwitch{}, Bridges: []string{"br-int"}, FirstIsPort: true, Recorded: func(string) bool { return false },
	}, nil)
	harness.OK(t, err)
	r := prometheus.NewRegistry()
	m := NewMetrics(r)
	r.MustRegister(gauges{n})
	m.Waited("bound", time.Second)
	m.Plugged("OVS", nil, time.Second)
	for _, err := range []error{plug.ErrInvalid, plug.ErrNoBridge, plug.ErrNotReady, plug.ErrPortInUse, errors.New("no memory")} {
		m.Plugged("OVS", err, time.Second)
	}
	m.Reported("Plugged", nil)
	m.Reported("Plugged", errors.New("away"))

	good, bad, plugged := podNIC(1, 0, v1alpha1.PhaseBound), podNIC(2, 0, v1alpha1.PhaseBound), podNIC(3, 0, v1alpha1.PhaseActive)
	good.UID, bad.UID, plugged.UID = "1", "2", "3"
	bad.Status.MAC = "?"
	n.change(func(b *observed) {
		for _, o := range []*v1alpha1.PodNIC{good, bad, plugged} {
			b.put(read(o, n.cfg.Bridges, onlyPorts))
		}
	})
	n.Plugged(recordOf(3, read(plugged, n.cfg.Bridges, onlyPorts).nic))
	defer n.waiters.Note(attachment.Request{}, func() *source.Exhausted { return nil })()
	n.vswitch.health = health{asked: true, err: plug.ErrUnreachable}

	want := map[string]float64{
		`berth_port_nics{phase="Active"}`: 1, `berth_port_nics{phase="Bound"}`: 2, `berth_port_nics{phase="Created"}`: 0,
		`berth_port_nics{phase="Failed"}`: 0, `berth_port_nics{phase="Pending"}`: 0, `berth_port_nics{phase="Releasing"}`: 0,
		`berth_port_plugged{}`: 1, `berth_port_unusable_nics{}`: 1, `berth_port_pending_reports{}`: 1, `berth_port_waiting_adds{}`: 1, `berth_port_ovsdb_reachable{}`: 0,
		`berth_port_wait_duration_seconds{for="bound"}`: 1, `berth_port_plug_duration_seconds{type="OVS"}`: 1,
		`berth_port_plug_failures_total{reason="invalid",type="OVS"}`: 1, `berth_port_plug_failures_total{reason="ovsdb",type="OVS"}`: 1,
		`berth_port_plug_failures_total{reason="not-ready",type="OVS"}`: 1, `berth_port_plug_failures_total{reason="taken",type="OVS"}`: 1,
		`berth_port_plug_failures_total{reason="other",type="OVS"}`:  1,
		`berth_port_reports_total{result="success",state="Plugged"}`: 1, `berth_port_reports_total{result="error",state="Plugged"}`: 1,
	}
	if d := cmp.Diff(want, sourcetest.Values(t, r, Reference)); d != "" {
		t.Error(d)
	}
}
