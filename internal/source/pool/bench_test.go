package pool

import (
	"fmt"
	"testing"
	"time"
)

// What one ADD and DEL cost in the holdings, and what the pass after them does,
// with so many pods on the node, each in a block of its own at worst.
func BenchmarkAddDel(b *testing.B) {
	for _, bits := range []int{0, 5} {
		for _, pods := range []int{10, 500} {
			b.Run(fmt.Sprintf("bits=%d/pods=%d", bits, pods), func(b *testing.B) {
				n := crowded(b, bits, pods)
				for b.Loop() {
					n.admit(podRequest(pods), n.now)
					n.cancel(key(pods), n.now)
				}
			})
			b.Run(fmt.Sprintf("pass/bits=%d/pods=%d", bits, pods), func(b *testing.B) {
				n := crowded(b, bits, pods)
				for b.Loop() {
					n.expire(n.now)
					n.review(n.now)
					n.plan(nodeID, n.now)
					n.serveAll(n.now)
					n.forget()
				}
			})
		}
	}
}

// crowded is a node with pods, and one free block.
func crowded(tb testing.TB, bits, pods int) *testNode {
	b := &testNode{now: t0, holdings: newHoldings(policy{cooling: cools, watermark: 25, releaseDelay: time.Hour})}
	b.sync.SetListed(true, allResources...)
	b.node = "n"
	b.pools.set(poolFacts{name: "default", bits: bits})
	b.pools.namespaces["ns"] = ""
	size := 1 << bits
	for i := 0; i*size <= pods+size; i++ {
		at := i * size
		b.give(blockOf(fmt.Sprint("default-", i), fmt.Sprintf("10.0.%d.%d/%d", at/256, at%256, 32-bits), ""))
	}
	for i := range pods + 1 {
		if i < pods {
			b.admit(podRequest(i), b.now)
		}
	}
	if len(b.leases.byKey) != pods {
		tb.Fatalf("%d pods have addresses", len(b.leases.byKey))
	}
	return b
}
