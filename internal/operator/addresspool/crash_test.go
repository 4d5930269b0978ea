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

// An operator that is killed at any step leaves nothing that the next one does
// not finish: every request has one block, nobody else's, what a node that is
// gone had is free again, and a pool that is deleted goes.
func TestKillAtEveryFailpoint(t *testing.T) {
	names := controllers.Failpoints(t, "operator.pool.", 9)
	if all := failpoint.Names(); len(all) != len(names) {
		t.Errorf("of %v nothing kills but %v", all, names)
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
			controllers.DropFinalizers(t, b) // its pods have left it
			controllers.AwaitGone(t, poolNamed("q"))
			names := map[string]bool{}
			for i := range 5 {
				names[answered(t, fmt.Sprintf("r%d", i)).Name] = true
			}
			returnLate(t, "p", 8, names) // what is gone is free, too
			controllers.AwaitValue(t, "operators that died", deaths, 1)
			sound(t)
		})
	}
}

// An operator that dies amid a hundred requests loses none and answers none twice.
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
	if len(names) != requests || deaths() != 1 {
		t.Errorf("%d blocks for %d requests, %d deaths", len(names), requests, deaths())
	}
	returnLate(t, "p", 256, names)
	sound(t)
}

// returnLate waits until a pool counts the blocks that requests were answered
// with and no other, and returns the others: what an operator had under way when
// it ended may take effect long after the next one has looked. Such a block is the
// node's, whose daemon returns it. What a node named gone has is the operator's to
// release.
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
		t.Errorf("%d blocks too many, at most %d were under way", len(late), requestWorkers)
	}
}

// sound checks what is true of blocks at any time: no address is two blocks',
// each block has its pool's addresses for its index, and no request has two.
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
			t.Errorf("%v: not what its pool has for index %d", s, b.Index)
		}
		if other, twice := byRequest[b.RequestUID]; twice {
			t.Errorf("request %s has %s and %s", b.RequestUID, other, b.Name)
		}
		byRequest[b.RequestUID] = b.Name
		for _, mine := range cidrs(&b) {
			for _, h := range held {
				if h.Overlaps(mine) {
					t.Errorf("%s of %s is %s", mine, b.Name, h)
				}
			}
			held = append(held, ownedRange{Prefix: mine, block: b.Name})
		}
	}
}
