package coil_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate/coil"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/replay"
	"github.com/berthnet/berth/test/harness"
)

// stage is a step of a migration, and the failpoints that it passes.
type stage struct {
	do     step
	points []string
	leaves bool // it starts again with the pod at which it was halted; otherwise with the first pod
}

var (
	applying  = stage{(*coil.Node).Apply, replay.CoilKills["apply"].All(), false}
	undoing   = stage{(*coil.Node).Rollback, replay.CoilKills["rollback"].All(), true}
	finishing = stage{(*coil.Node).Finish, replay.CoilKills["apply --finish"].All(), false}
	chaining  = []string{"coil.draft.after", "coil.exchange.after"} // of apply and rollback, where Coil is chained
)

// The tool may be killed at any step, of any pod: the pods are reached meanwhile, and repeating the step completes it.
func TestKilledAtEveryStep(t *testing.T) {
	for _, point := range failpoint.Names() {
		ours := strings.HasPrefix(point, "coil.") || strings.HasPrefix(point, "adopt.") || strings.HasPrefix(point, "giveback.")
		if ours && !slices.Contains(slices.Concat(applying.points, undoing.points, finishing.points, chaining), point) {
			t.Errorf("%s is not tested", point)
		}
	}
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{} // a pod of each namespace, and so of each pool
			m := raiseWith(t, form.cluster, form.node, func(p replay.Pod) bool {
				first := !seen[p.Namespace] && p.Node == form.node
				seen[p.Namespace] = seen[p.Namespace] || first
				return first
			})
			m.serve()
			before := m.dump()
			for i, point := range undoing.points {
				m.haltedAt(applying, applying.points[i%len(applying.points)])
				m.haltedAt(undoing, point)
				m.compare(before)
			}
			m.do(applying.do, true)
			m.announce()
			for _, point := range finishing.points {
				if !m.halted(point, 1, finishing.do) {
					t.Errorf("%s was not hit", point)
				}
			}
			m.do(finishing.do, true)
			m.do((*coil.Node).Verify, false)
			m.reached("at the end")
			m.nothingLeft()
		})
	}
}

// haltedAt performs a step that is halted at a point for each pod, and then to its end.
func (m *moving) haltedAt(s stage, point string) {
	m.t.Helper()
	halts := 0
	for at := 1; m.halted(point, at, s.do); {
		if halts++; halts > len(m.Pods) {
			m.t.Fatalf("%s was hit more often than there are pods", point)
		}
		if at++; s.leaves {
			at = 2
		}
	}
	if halts != len(m.Pods) {
		m.t.Errorf("%d halts at %s, want one for each of %d pods", halts, point, len(m.Pods))
	}
}

// halted performs a step that fails at a hit of a failpoint, and checks that all pods are reached then.
func (m *moving) halted(point string, at int, s step) bool {
	m.t.Helper()
	hit := m.fails(point, at, s)
	m.reached(fmt.Sprintf("after hit %d of %s", at, point))
	return hit
}

// fails performs a step, and reports whether it failed at a hit of a failpoint.
func (m *moving) fails(point string, at int, s step) bool {
	m.t.Helper()
	restore, err := failpoint.Set(fmt.Sprintf("%s=error@%d", point, at))
	harness.OK(m.t, err)
	m.with(func(n *coil.Node) { _, err = s(n, m.t.Context()) })
	restore()
	if err != nil && !errors.Is(err, failpoint.ErrHit) {
		m.t.Fatalf("halted at %s: %v", point, err)
	}
	return err != nil
}

// reached checks that all pods answer when neither they nor the node know any neighbour, as long after a kill.
func (m *moving) reached(when string) {
	m.t.Helper()
	for _, p := range m.Pods {
		harness.OK(m.t, forgetNeighbours(m.PodNetns(p)))
	}
	harness.OK(m.t, forgetNeighbours(m.Netns(m.node)))
	for _, p := range m.Pods {
		for _, a := range p.Addresses() {
			c, err := echo.Connect(m.t.Context(), m.Router(), "udp", netip.AddrPortFrom(a, echo.Port), netip.Addr{})
			if err == nil {
				_, err = c.Once("hello", 2*time.Second)
				_ = c.Close()
			}
			if err != nil {
				m.t.Errorf("%s: %s of pod %s: %v", when, a, p.Name, err)
			}
		}
	}
}

// forgetNeighbours deletes the neighbours of a namespace that a kernel learned.
func forgetNeighbours(path string) error {
	return ns.Netlink(path, func(h *netlink.Handle) error {
		list, err := h.NeighList(0, netlink.FAMILY_ALL)
		for _, n := range list {
			if n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 {
				_ = h.NeighDel(&n) // it may be gone
			}
		}
		return err
	})
}
