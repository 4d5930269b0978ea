//go:build guest

package routedvlan

import (
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/plugtest"
)

// A setting that somebody changes under a port is found, and put back.
func TestSettings(t *testing.T) {
	w := newWorld(t)
	w.live(false, "0")
	p := w.plugger()
	pod := plugtest.Space(t, "pod")
	want := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, pod)
	_, err := p.Plug(plugtest.Bounded(t), want)
	plugtest.Must(t, err)
	plugtest.Must(t, p.Check(plugtest.Bounded(t), want))
	settings := branchOf(want).settings()
	if len(settings) == 0 {
		t.Fatal("a port of mode strict has no settings")
	}
	for _, s := range settings {
		other := s
		if other.Value = "0"; s.Value == "0" {
			other.Value = "1"
		}
		set := func(s rtnl.Sysctl) {
			t.Helper()
			plugtest.Must(t, ns.Do(w.node.Path, func() error { return ns.SetSysctls(ns.Sysctl{Name: s.Path, Value: s.Value}) }))
		}
		set(other)
		if err := p.Check(plugtest.Bounded(t), want); err == nil || !strings.Contains(err.Error(), s.String()) {
			t.Errorf("%s was set to %s: %v", s, other.Value, err)
		}
		_, err := p.Plug(plugtest.Bounded(t), want)
		plugtest.Must(t, err)
		plugtest.Must(t, p.Check(plugtest.Bounded(t), want))
	}
}
