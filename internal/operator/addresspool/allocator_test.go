package addresspool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

var t0 = time.Unix(1e9, 0)

// asking returns a request for a block of pool p that was created after this many seconds.
func asking(name string, after int) *v1alpha1.BlockRequest {
	r := &v1alpha1.BlockRequest{Spec: v1alpha1.BlockRequestSpec{PoolName: "p", NodeName: "n"}}
	r.Name, r.UID, r.CreationTimestamp = name, types.UID(name), metav1.Unix(int64(after), 0)
	return r
}

// allocation is an allocator under test with one pool.
type allocation struct {
	*testing.T
	*allocator
	pool v1alpha1.AddressPool
}

func newAllocation(t *testing.T, cidrs ...string) *allocation {
	return &allocation{t, newAllocator(), poolAt("p", 1, 0, cidrs...)}
}

func (b *allocation) takes(r *v1alpha1.BlockRequest, want int64, how outcome, again ...string) {
	b.Helper()
	o, why := b.allocate(r, t0)
	if why != nil || o.index != want || o.pool != b.pool.UID || o.block != "" {
		b.Fatalf("allocate(%s) = %+v, %+v, want index %d", r.Name, o, why, want)
	}
	if got := b.finish(r, how, fmt.Sprintf("p-%d", want)); !slices.Equal(got, again) {
		b.Errorf("finish(%s) = %v, want %v", r.Name, got, again)
	}
}

func (b *allocation) fails(r *v1alpha1.BlockRequest, reason string) {
	b.Helper()
	if o, why := b.allocate(r, t0); why == nil || why.reason != reason {
		b.Fatalf("allocate(%s) = %+v, %+v, want reason %s", r.Name, o, why, reason)
	}
}

func (b *allocation) opens(n int, again ...string) {
	b.Helper()
	l, err := layout(&b.pool, n)
	if err != nil {
		b.Fatal(err)
	}
	if got := b.setPool(&b.pool, l, nil); !slices.Equal(got, again) {
		b.Errorf("setPool() = %v, want %v", got, again)
	}
}

func (b *allocation) frees(index int64, again ...string) {
	b.Helper()
	if got := b.release("p", index); !slices.Equal(got, again) {
		b.Errorf("release(%d) = %v, want %v", index, got, again)
	}
}

func (b *allocation) ends(name string, uncertain *slot, again ...string) {
	b.Helper()
	got, names := b.forget(name, "")
	if !slices.Equal(names, again) || (got == nil) != (uncertain == nil) || got != nil && *got != *uncertain {
		b.Errorf("forget(%s) = %v, %v, want %v, %v", name, got, names, uncertain, again)
	}
}

// A released block is reserved for the request that has waited longest, even if a later request
// is reconciled first.
func TestOldestFirst(t *testing.T) {
	b := newAllocation(t, "10.0.0.0/31")
	b.fails(asking("early", 1), v1alpha1.ReasonPoolNotFound)
	b.observe("p", 0) // a block arrives before its pool does
	b.opens(1, "early")
	b.takes(asking("early", 1), 1, made)
	b.fails(asking("c", 30), v1alpha1.ReasonPoolExhausted)
	b.fails(asking("a", 10), v1alpha1.ReasonPoolExhausted)
	b.fails(asking("b", 20), v1alpha1.ReasonPoolExhausted)
	b.fails(asking("a", 10), v1alpha1.ReasonPoolExhausted) // a second attempt does not queue it twice
	b.frees(0, "a")
	b.fails(asking("late", 40), v1alpha1.ReasonPoolExhausted)
	b.takes(asking("a", 10), 0, made)
	b.frees(0, "b")
	b.ends("b", nil, "c") // b was deleted: the next request is offered the block
	b.ends("late", nil)
	b.takes(asking("c", 30), 0, made)
}

// A block whose creation has an unknown outcome is retried by name and is not lost.
func TestUnknownOutcomeIsRetried(t *testing.T) {
	b := newAllocation(t, "10.0.0.0/30")
	b.opens(1)
	b.takes(asking("a", 1), 0, unknown)
	b.takes(asking("b", 2), 1, unknown)
	b.takes(asking("a", 1), 0, taken)
	b.takes(asking("a", 1), 2, made)
	if o, why := b.allocate(asking("a", 1), t0); why != nil || o.block != "p-2" {
		t.Errorf("allocate(a) = %+v, %+v, want the existing block p-2", o, why)
	}
	b.takes(asking("c", 3), 3, refused)
	b.takes(asking("c", 3), 3, made)
	if uncertain, _ := b.forget("b", "b"); uncertain != nil {
		t.Error("forget(b) released the block of a request that exists")
	}
	b.ends("b", &slot{"p", 1})
	b.frees(1)
	b.ends("a", nil)
	b.ends("c", nil)
	if n := b.counts("p"); n.blocks != (v1alpha1.PoolCounts{Total: 4, Allocated: 3, Free: 1}) || n.making != 0 {
		t.Errorf("counts = %+v, want 3 of 4 blocks allocated and none in creation", n)
	}
	if list := b.usage(); len(list) != 1 || list[0].Pool != "p" || list[0].Blocks.Free != 1 || list[0].Addresses.Total != 4 {
		t.Errorf("usage = %+v, want 1 free block and 4 addresses in pool p", list)
	}
	// No watch has shown 0, 2 and 3 yet.
	b.observe("p", 2)
	if list := b.unconfirmedBefore(t0.Add(time.Second)); len(list) != 2 {
		t.Errorf("unconfirmedBefore() = %v, want indexes 0 and 3", list)
	}
	if list := b.unconfirmedBefore(t0); len(list) != 0 {
		t.Errorf("unconfirmedBefore() = %v, want none allocated before t0", list)
	}
}

// A block whose addresses are all in use elsewhere is neither allocated nor free until they are released.
func TestBlockInUseElsewhere(t *testing.T) {
	b := newAllocation(t, "10.0.0.0/30")
	b.opens(1)
	b.takes(asking("a", 1), 0, unusable)
	b.takes(asking("a", 1), 1, unusable)
	b.takes(asking("a", 1), 2, made)
	b.takes(asking("b", 2), 3, made)
	b.fails(asking("c", 3), v1alpha1.ReasonPoolExhausted)
	has := func(given, free int64) {
		t.Helper()
		if n := b.counts("p"); n.blocks != (v1alpha1.PoolCounts{Total: 4, Allocated: given, Free: free}) {
			t.Errorf("counts = %+v, want %d allocated and %d free", n, given, free)
		}
	}
	has(2, 0)
	if list := b.unconfirmedBefore(t0.Add(time.Second)); len(list) != 2 {
		t.Errorf("unconfirmedBefore() = %v, want 2 indexes", list)
	}
	if again := b.recheckUnusable(func(_ string, p block.Block) bool { return p.IPv4.String() == "10.0.0.1/32" }); !slices.Equal(again, []string{"c"}) {
		t.Errorf("recheckUnusable() = %v, want [c]", again)
	}
	has(2, 1)
	b.takes(asking("c", 3), 1, made)
	b.observe("p", 0) // an attempt with an unknown outcome had made it
	has(4, 0)
	b.frees(0)
	b.takes(asking("d", 4), 0, unusable)
	b.pool.UID = "another"
	b.opens(1)
	has(3, 1)
}

// Closing or opening a pool wakes all waiting requests. A recreated pool is a different pool, and
// the blocks that outlived the first one stay allocated.
func TestPoolClosesAndReopens(t *testing.T) {
	b := newAllocation(t, "10.0.0.0/31", "10.1.0.0/31")
	b.opens(1)
	b.takes(asking("a", 1), 0, made)
	b.takes(asking("b", 2), 1, made)
	b.observe("p", 0)
	b.observe("p", 1)
	b.fails(asking("c", 3), v1alpha1.ReasonPoolExhausted)
	b.fails(asking("d", 4), v1alpha1.ReasonPoolExhausted)
	b.opens(2, "c", "d")
	b.takes(asking("c", 3), 2, made)
	b.takes(asking("d", 4), 3, made)
	b.fails(asking("e", 5), v1alpha1.ReasonPoolExhausted)
	l, _ := layout(&b.pool, 2)
	if got := b.setPool(&b.pool, l, &refusal{v1alpha1.ReasonPoolDeleted, "deleted"}); !slices.Equal(got, []string{"e"}) {
		t.Errorf("setPool() = %v, want [e]", got)
	}
	b.fails(asking("e", 5), v1alpha1.ReasonPoolDeleted)
	for i := range int64(3) {
		b.frees(i)
	}
	if got := b.removePool("p"); !slices.Equal(got, []string{"e"}) {
		t.Errorf("removePool() = %v, want [e]", got)
	}
	b.fails(asking("e", 5), v1alpha1.ReasonPoolNotFound)
	b.pool.UID, b.pool.Status.NextIndex = "again", 3
	b.opens(2, "e")
	b.takes(asking("e", 5), 0, made)
	for name := range maps.Clone(b.pending) {
		b.ends(name, nil)
	}
	b.removePool("p")
	b.frees(0)
	b.frees(3)
	if len(b.pools)+len(b.pending) > 0 {
		t.Errorf("pools %v and pending requests %v are left, want none", b.pools, b.pending)
	}
}

// world simulates an API server whose events reach the allocator late and in any order.
type world struct {
	*allocator
	pool     v1alpha1.AddressPool
	size     int64
	blocks   map[int64]string // name of the request by index; a block is not freed while its request exists
	requests map[string]*v1alpha1.BlockRequest
	queue    []string // the controller's workqueue
	served   map[string]int64
	named    int
}

func (w *world) add(names []string) {
	for _, n := range names {
		if !slices.Contains(w.queue, n) {
			w.queue = append(w.queue, n)
		}
	}
}

// look simulates the controller reconciling a request.
func (w *world) look(t *rapid.T, name string) {
	r := w.requests[name]
	_, served := w.served[name]
	if r == nil || served {
		uncertain, again := w.forget(name, "")
		w.add(again)
		if uncertain != nil && w.blocks[uncertain.index] == "" {
			w.add(w.release(uncertain.pool, uncertain.index))
		}
		return
	}
	for {
		o, why := w.allocate(r, t0)
		if why != nil {
			return
		}
		if o.block != "" {
			t.Fatalf("allocate(%s) returned a block that the test did not record", name)
		}
		owner := w.blocks[o.index]
		switch how := rapid.SampledFrom([]outcome{made, made, made, unknown, refused, unusable}).Draw(t, "how"); {
		case how == unusable:
			w.add(w.finish(r, unusable, ""))
		case owner == name, owner == "" && how == made:
			w.blocks[o.index], w.served[name] = name, o.index
			w.add(w.finish(r, made, "p"))
			w.add([]string{name}) // the event for its answer
			return
		case owner != "":
			w.add(w.finish(r, taken, ""))
		default:
			if how == unknown && rapid.Bool().Draw(t, "made") {
				w.blocks[o.index] = name
			}
			w.add(w.finish(r, how, ""))
			w.add([]string{name}) // the controller retries
			return
		}
	}
}

// Regardless of the order of events, no two requests get the same block. Once the queue is empty,
// no request waits while a block is free, and no younger request was served before an older one.
func TestAllocatorServesOldestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			allocator: newAllocator(), pool: poolAt("p", 1, 0, "10.0.0.0/32", "10.1.0.0/32"),
			blocks: map[int64]string{}, requests: map[string]*v1alpha1.BlockRequest{}, served: map[string]int64{},
		}
		open := func(n int, closed *refusal) {
			l, err := layout(&w.pool, n)
			if err != nil {
				t.Fatal(err)
			}
			w.size = l.Blocks()
			w.add(w.setPool(&w.pool, l, closed))
		}
		pick := func(t *rapid.T, from []string) string {
			if len(from) == 0 {
				t.Skip("none")
			}
			slices.Sort(from)
			return rapid.SampledFrom(from).Draw(t, "which")
		}
		next := func(t *rapid.T) {
			name := pick(t, slices.Clone(w.queue))
			w.queue = slices.DeleteFunc(w.queue, func(n string) bool { return n == name })
			w.look(t, name)
		}
		t.Repeat(map[string]func(*rapid.T){
			"open":  func(t *rapid.T) { open(rapid.IntRange(int(min(1, w.size)), 2).Draw(t, "subnets"), nil) },
			"close": func(t *rapid.T) { open(0, &refusal{v1alpha1.ReasonPoolOverlaps, "closed by the test"}) },
			"ask": func(t *rapid.T) {
				w.named++
				name := fmt.Sprintf("r%03d", w.named)
				w.requests[name] = asking(name, rapid.IntRange(0, 5).Draw(t, "at"))
				w.add([]string{name})
			},
			"withdraw": func(t *rapid.T) {
				name := pick(t, slices.Collect(maps.Keys(w.requests)))
				delete(w.requests, name)
				delete(w.served, name)
				w.add([]string{name})
			},
			"watch": func(t *rapid.T) {
				for index := range w.blocks {
					w.observe("p", index)
				}
			},
			"release": func(t *rapid.T) {
				indexes := slices.Sorted(maps.Keys(w.blocks))
				if len(indexes) == 0 {
					t.Skip("none")
				}
				index := rapid.SampledFrom(indexes).Draw(t, "index")
				if _, served := w.served[w.blocks[index]]; w.requests[w.blocks[index]] != nil && !served {
					t.Skip("the request is not answered yet")
				}
				delete(w.blocks, index)
				w.add(w.release("p", index))
			},
			"recheck": func(t *rapid.T) {
				w.add(w.recheckUnusable(func(string, block.Block) bool { return rapid.Bool().Draw(t, "usable") }))
			},
			"look": next,
			"look repeatedly": func(t *rapid.T) {
				for range 20 {
					if len(w.queue) > 0 {
						next(t)
					}
				}
			},
			"": func(t *rapid.T) {
				if len(w.queue) == 0 {
					w.checkAtRest(t)
				}
			},
		})
	})
}

// checkAtRest checks the allocator once the queue is empty.
func (w *world) checkAtRest(t *rapid.T) {
	g := w.pools["p"]
	if g == nil {
		return
	}
	if g.offered != 0 || g.making != 0 {
		t.Fatalf("%d blocks offered and %d in creation with an empty queue, want none", g.offered, g.making)
	}
	waits := 0
	for name := range w.requests {
		if _, ok := w.served[name]; !ok {
			waits++
		}
	}
	if waits != len(g.waiting) {
		t.Fatalf("%d requests are waiting, the allocator has %d", waits, len(g.waiting))
	}
	if g.closed == nil && g.free() > 0 && waits > 0 {
		t.Fatalf("%d requests are waiting while %d blocks are free", waits, g.free())
	}
	if !slices.IsSortedFunc(g.waiting, func(a, b *pending) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.name, b.name)) }) {
		t.Fatal("waiting requests are not sorted by age")
	}
	// Every allocated index has a block or is found by the sweep.
	for index := range w.size {
		_, unconfirmed := g.unconfirmed[index]
		if w.blocks[index] == "" && !unconfirmed && g.carver.Taken() > int64(len(w.blocks)+len(g.unconfirmed)+len(g.unusable)) {
			t.Fatalf("index %d is allocated without a block", index)
		}
	}
}
