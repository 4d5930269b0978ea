package pool

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/source/addressqueue"
)

// simulation drives holdings through random events, with an API server, a file and a
// data path that do what they are asked whenever they like, and holds it to the
// rules that no order of events may break.
type simulation struct {
	*testNode
	blocks    map[string]blockFacts // at the API server
	committed map[string]bool       // blocks that the file and the data path have
	waiters   map[int]*addressqueue.Waiter
	released  map[netip.Addr]time.Time
	held      map[int][]netip.Addr
	next      int // index of the next block
	version   int
}

var dual = []string{"10.0.%d.%d/%d", "fd00::%x/%d"}

func newSimulation(t *rapid.T) *simulation {
	l := &simulation{
		testNode: &testNode{now: t0, holdings: newHoldings(policy{cooling: cools, watermark: 25, releaseDelay: delay})},
		blocks:   map[string]blockFacts{}, committed: map[string]bool{}, waiters: map[int]*addressqueue.Waiter{},
		released: map[netip.Addr]time.Time{}, held: map[int][]netip.Addr{},
	}
	l.sync.SetListed(true, allResources...)
	l.node = "n"
	l.pools.namespaces["ns"] = ""
	l.pools.set(poolFacts{name: "default", bits: rapid.IntRange(0, 2).Draw(t, "bits")})
	return l
}

// cut answers a request, or gives a block that nobody asked for.
func (l *simulation) cut(request types.UID) {
	size := l.pools.byName["default"].size
	at := l.next % (64 / size) * size // indexes come round again
	l.next++
	bits := 0
	for 1<<bits < size {
		bits++
	}
	name := fmt.Sprintf("default-%d", at/size)
	if _, taken := l.blocks[name]; taken {
		return
	}
	b := blockOf(name, fmt.Sprintf(dual[0], 0, at, 32-bits), fmt.Sprintf(dual[1], at, 128-bits))
	l.version++
	b.uid, b.request, b.finalizers = types.UID(fmt.Sprint(l.version)), request, []string{v1alpha1.FinalizerBlock}
	l.put(b)
}

func (l *simulation) put(b blockFacts) {
	l.version++
	b.version = fmt.Sprint(l.version)
	l.blocks[b.name] = b
	l.setBlock(b, true, l.now)
}

// drain deletes a block, whoever asked for that.
func (l *simulation) drain(name string) {
	if b, ok := l.blocks[name]; ok && !b.draining {
		b.draining = true
		l.put(b)
	}
}

// act does what the holdings ask the API server for.
func (l *simulation) act(t *rapid.T, a action) {
	switch a.kind {
	case createRequest:
		l.version++
		l.requests.set(&request{name: a.name, pool: a.pool, uid: types.UID(fmt.Sprint("r", l.version)), created: l.now})
	case deleteRequest:
		if r, ok := l.requests.byName[a.name]; ok && r.uid == a.uid {
			delete(l.requests.byName, a.name)
		}
	case returnBlock:
		if l.blocks[a.name].uid == a.uid {
			l.drain(a.name)
		}
	case freeBlock:
		b := l.blocks[a.name]
		if b.uid != a.uid || b.version != a.block.version {
			return
		}
		l.free(t, a.name)
	}
}

// free removes the finalizer: from now on another node may have the block.
func (l *simulation) free(t *rapid.T, name string) {
	b := l.blocks[name]
	if l.committed[name] {
		t.Fatalf("block %s was let go while the file or the data path has it", name)
	}
	for i, addrs := range l.held {
		if b.first.Contains(addrs[0]) {
			t.Fatalf("block %s was let go while pod %d has %v", name, i, addrs)
		}
	}
	for a, since := range l.released {
		if b.first.Contains(a) && since.Add(cools).After(l.now) {
			t.Fatalf("block %s was let go while %v cools", name, a)
		}
	}
	delete(l.blocks, name)
	l.loseBlock(name, l.now)
}

// putInPlace is the file and the data path.
func (l *simulation) putInPlace() (want, gone []blockFacts) {
	want, gone = l.holdings.blocks.desired(), l.holdings.blocks.withdrawn()
	clear(l.committed)
	for _, b := range want {
		l.committed[b.name] = true
	}
	return want, gone
}

func (l *simulation) commit() {
	want, gone := l.putInPlace()
	l.each(want, (*heldBlock).program)
	l.each(gone, (*heldBlock).clear)
	l.serveAll(l.now)
}

// look is a pass of the loop.
func (l *simulation) look(t *rapid.T) []action {
	l.expire(l.now)
	l.review(l.now)
	todo, _ := l.plan(nodeID, l.now)
	l.serveAll(l.now)
	l.forget()
	l.hear(t)
	return todo
}

// answerOne is the operator.
func (l *simulation) answerOne() {
	for _, name := range slices.Sorted(maps.Keys(l.requests.byName)) {
		if r := l.requests.byName[name]; !r.complete() && l.holdings.blocks.given(r) == nil {
			l.cut(r.uid)
			return
		}
	}
}

// hear takes the answers of those who waited, and checks them.
func (l *simulation) hear(t *rapid.T) {
	for i, w := range l.waiters {
		var a addressqueue.Answer
		select {
		case a = <-w.Answered():
		default:
			continue
		}
		delete(l.waiters, i)
		if a.Err != nil {
			t.Fatalf("pod %d: %v", i, a.Err)
		}
		addrs := a.Lease.Addrs()
		b, ok := l.blocks[a.Lease.Block]
		switch {
		case len(addrs) != 2 || !ok || !b.first.Contains(addrs[0]) || at(addrs[0], b.first, b.second) != addrs[1]:
			t.Fatalf("pod %d got %+v of %+v", i, a.Lease, b)
		case b.draining:
			t.Fatalf("pod %d got %v of a block that is deleted", i, addrs)
		case !l.committed[b.name]:
			t.Fatalf("pod %d got %v without file and route", i, addrs)
		}
		for _, addr := range addrs {
			if since, ok := l.released[addr]; ok && since.Add(cools).After(l.now) {
				t.Fatalf("pod %d got %v, which cools", i, addr)
			}
			for j, other := range l.held {
				if slices.Contains(other, addr) {
					t.Fatalf("pods %d and %d have %v", i, j, addr)
				}
			}
		}
		l.held[i] = addrs
	}
}

func TestNoOrderOfEventsBreaksTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newSimulation(t)
		pod := rapid.IntRange(0, 19)
		block := func(t *rapid.T) string {
			if len(l.blocks) == 0 {
				t.Skip("no block")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(l.blocks))).Draw(t, "block")
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				if i := pod.Draw(t, "pod"); l.held[i] == nil && l.waiters[i] == nil {
					l.waiters[i] = l.admit(podRequest(i), l.now)
				}
			},
			"give up": func(t *rapid.T) {
				i := pod.Draw(t, "pod")
				if w := l.waiters[i]; w != nil && w.Leave() {
					delete(l.waiters, i)
				}
			},
			"del": func(t *rapid.T) {
				i := pod.Draw(t, "pod")
				for _, a := range l.held[i] {
					l.released[a] = l.now
				}
				delete(l.held, i)
				if l.waiters[i] == nil {
					l.release(key(i), l.now)
				}
			},
			"undo": func(t *rapid.T) {
				i := pod.Draw(t, "pod")
				delete(l.held, i)
				if l.waiters[i] == nil {
					l.cancel(key(i), l.now)
				}
			},
			"time": func(t *rapid.T) {
				l.now = l.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			},
			"act": func(t *rapid.T) {
				if todo := l.look(t); len(todo) > 0 {
					l.act(t, rapid.SampledFrom(todo).Draw(t, "action"))
				}
			},
			"answer": func(t *rapid.T) { l.answerOne() },
			"work": func(t *rapid.T) { // everything that can be done at this moment
				for range 4 {
					for _, a := range l.look(t) {
						l.act(t, a)
					}
					l.answerOne()
					l.commit()
				}
			},
			"complete": func(*rapid.T) {
				for _, r := range l.requests.byName {
					if b := l.holdings.blocks.given(r); b != nil {
						r.block = b.name
					}
				}
			},
			"commit": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "fails") {
					l.putInPlace() // and nobody hears of it
					return
				}
				l.commit()
			},
			"delete a block": func(t *rapid.T) { l.drain(block(t)) },
			"restart": func(t *rapid.T) {
				l.restart(t)
			},
			"": func(t *rapid.T) {
				l.hear(t)
				if n := len(l.requests.of("default")); n > maxOutstanding {
					t.Fatalf("%d requests", n)
				}
			},
		})
	})
}

// restart is a daemon's end and the next one's start, which reads the records
// and hears what there is.
func (l *simulation) restart(t *rapid.T) {
	l.hear(t)
	before := l.holdings
	l.holdings = newHoldings(before.policy)
	l.holdings.pools.namespaces, l.sync, l.node = before.pools.namespaces, before.sync, before.node
	clear(l.waiters)
	early := rapid.Bool().Draw(t, "records first")
	list := func() {
		l.pools.set(poolFacts{name: "default", bits: bitsOf(before.pools.byName["default"].size)})
		for _, name := range slices.Sorted(maps.Keys(l.blocks)) {
			l.setBlock(l.blocks[name], true, l.now)
		}
		for name, r := range before.requests.byName {
			l.requests.byName[name] = r
		}
	}
	if !early {
		list()
	}
	for a, since := range l.released {
		if since.Add(cools).After(l.now) && (a.Is4() || rapid.Bool().Draw(t, "both records")) {
			l.restoreCooling(a, since, l.now)
		}
	}
	for i, addrs := range l.held {
		lease := before.leases.byKey[key(i)].Lease
		if err := l.restore(podRequest(i), lease, l.now); err != nil {
			t.Fatalf("pod %d with %v: %v", i, addrs, err)
		}
	}
	if early {
		list()
	}
}

func bitsOf(size int) (bits int) {
	for 1<<bits < size {
		bits++
	}
	return bits
}
