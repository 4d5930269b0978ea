package addresspool

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// An operator killed at any step leaves nothing that its successor does not complete: every
// request has exactly one block, the blocks of a deleted node are free, and a deleted pool
// disappears.
func TestKillAtEveryFailpoint(t *testing.T) {
	names := controllers.Failpoints(t, "operator.pool.", 9)
	if all := failpoint.Names(); len(all) != len(names) {
		t.Errorf("failpoints = %v, but only %v are killed", all, names)
	}
	for _, name := range harness.Sample(t, 9, names) {
		t.Run(name, func(t *testing.T) {
			harness.KubeClean(t)
			c := harness.KubeClient(t)
			deaths := controllers.Killed(t, operatorConfig(t), name+"=kill")
			makeNode(t, "n")
			makeNode(t, "gone")
			makePool(t, "p", 0, "10.2.0.0/29")
			makePool(t, "q", 0, "10.3.0.0/30")
			for i := range 5 {
				ask(t, fmt.Sprintf("r%d", i), "n", "p")
			}
			given(t, "of-gone", "gone", "p")
			harness.OK(t, c.Delete(t.Context(), nodeNamed("gone")))
			b := given(t, "of-q", "n", "q")
			harness.OK(t, c.Delete(t.Context(), poolNamed("q")))
			awaitDeletion(t, b.Name)
			controllers.DropFinalizers(t, b) // the block has no pods left
			controllers.AwaitGone(t, poolNamed("q"))
			names := map[string]bool{}
			for i := range 5 {
				names[answered(t, fmt.Sprintf("r%d", i)).Name] = true
			}
			returnLate(t, "p", 8, names) // including the block of node gone, which is released
			controllers.AwaitValue(t, "killed operators", deaths, 1)
			sound(t)
		})
	}
}

// An operator killed amid a hundred requests loses none and answers none twice.
func TestKillAmidRequests(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	makePool(t, "p", 2, "10.2.0.0/22")
	const requests = 100
	for i := range requests {
		ask(t, fmt.Sprintf("r%d", i), "n", "p")
	}
	deaths := controllers.Killed(t, operatorConfig(t), "operator.pool.cut.after=kill@50")
	names := map[string]bool{}
	for i := range requests {
		names[answered(t, fmt.Sprintf("r%d", i)).Name] = true
	}
	if len(names) != requests {
		t.Errorf("%d blocks for %d requests, want one block each", len(names), requests)
	}
	controllers.AwaitValue(t, "killed operators", deaths, 1)
	returnLate(t, "p", 256, names)
	sound(t)
}

// returnLate waits until a pool counts exactly the blocks that answer requests, and releases all
// others: a call in flight when an operator was killed may take effect long after its successor
// has listed the blocks. Such a block belongs to the node, whose daemon releases it. Blocks of the
// node called gone are released by the operator.
func returnLate(t *testing.T, pool string, total int64, answers map[string]bool) {
	t.Helper()
	late := map[types.UID]bool{}
	poolIs(t, pool, "counts", func(p *v1alpha1.AddressPool) error {
		list := &v1alpha1.AddressBlockList{}
		if err := harness.KubeClient(t).List(t.Context(), list); err != nil {
			return err
		}
		for _, b := range list.Items {
			if !answers[b.Name] && b.NodeName != "gone" && !late[b.UID] {
				late[b.UID] = true
				giveBack(t, b.Name)
			}
		}
		return counted(total, int64(len(answers)))(p)
	})
	if len(late) > requestWorkers {
		t.Errorf("%d surplus blocks, want at most %d, the number of workers", len(late), requestWorkers)
	}
}

// sound checks invariants of blocks: no two share an address, each has its pool's addresses for
// its index, and no request has two.
func sound(t *testing.T) {
	t.Helper()
	c, pools, list := harness.KubeClient(t), &v1alpha1.AddressPoolList{}, &v1alpha1.AddressBlockList{}
	harness.OK(t, c.List(t.Context(), list))
	harness.OK(t, c.List(t.Context(), pools))
	orphansOf := orphanRanges(pools.Items)
	var held []ownedRange
	byRequest := map[types.UID]string{}
	for _, b := range list.Items {
		if s := orphansOf(&b); len(s) > 0 {
			t.Errorf("addresses %v are not those of the pool's index %d", s, b.Index)
		}
		if other, twice := byRequest[b.RequestUID]; twice {
			t.Errorf("request %s has two blocks, %s and %s", b.RequestUID, other, b.Name)
		}
		byRequest[b.RequestUID] = b.Name
		for _, mine := range cidrs(&b) {
			for _, h := range held {
				if h.Overlaps(mine) {
					t.Errorf("%s of block %s overlaps %s", mine, b.Name, h)
				}
			}
			held = append(held, ownedRange{Prefix: mine, block: b.Name})
		}
	}
}
