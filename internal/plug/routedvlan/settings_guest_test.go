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

// A setting that somebody changes is found, and Plug puts it back. A branch of mode standard needs none.
func TestSettings(t *testing.T) {
	w := newWorld(t)
	strict := w.want(7, plug.Strict, plugtest.One, plugtest.PortA, plugtest.Space(t, "pod"))
	standard := w.want(8, plug.Standard, plugtest.Two, plugtest.PortB, plugtest.Space(t, "pod"))
	p := w.plugger()
	plugged := func(want plug.Want) {
		t.Helper()
		_, err := p.Plug(plugtest.Bounded(t), want)
		plugtest.Must(t, err)
		plugtest.Must(t, p.Check(plugtest.Bounded(t), want))
	}
	plugged(strict)
	plugged(standard)
	settings := branchOf(strict).settings()
	if len(settings) == 0 {
		t.Fatal("a branch of mode strict has no settings")
	}
	for _, s := range settings {
		other := map[string]string{"0": "1", "1": "0"}[s.Value]
		plugtest.Must(t, ns.Do(w.node.Path, func() error { return ns.SetSysctls(ns.Sysctl{Name: s.Path, Value: other}) }))
		if err := p.Check(plugtest.Bounded(t), strict); err == nil || !strings.Contains(err.Error(), "sysctl "+s.String()+" is "+other) {
			t.Errorf("Check with %s at %s: %v", s.Path, other, err)
		}
		plugtest.Must(t, p.Check(plugtest.Bounded(t), standard))
		plugged(strict)
		if now := w.value(s); now != s.Value {
			t.Errorf("%s is %s after Plug", s.Path, now)
		}
	}
}

// value is what a setting is on the node.
func (w *world) value(s rtnl.Sysctl) (now string) {
	w.t.Helper()
	plugtest.Must(w.t, ns.Do(w.node.Path, func() (err error) {
		now, _, err = s.Look("")
		return err
	}))
	return now
}
