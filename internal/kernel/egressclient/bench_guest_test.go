//go:build guest

package egressclient

import (
	"testing"

	"github.com/berthnet/berth/lab/network/ns"
)

// BenchmarkApply sets up an Egress with two gateways for both families in a pod, finds nothing to do,
// changes a gateway, checks, and takes all away.
func BenchmarkApply(b *testing.B) {
	w := newWorld(b)
	with, other := setup(gateway(1), gateway(2)), setup(gateway(1), gateway(3))
	run := func(name string, before, timed func()) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				before()
				b.StartTimer()
				timed()
			}
		})
	}
	to := func(s Setup) func() {
		return func() {
			_, err := w.steps(s, nil)
			w.must(err)
		}
	}
	run("new", to(Setup{}), to(with))
	run("nothing to do", to(with), to(with))
	run("one gateway other", to(with), to(other))
	run("check", to(with), func() { w.must(Check(b.Context(), ns.Path(clientNS), with)) })
	run("taken away", to(with), to(Setup{}))
	run("a namespace with a link, for comparison", func() {}, w.client)
}
