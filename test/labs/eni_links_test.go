package labs

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// linksPresent is the condition about the links of ENIs.
const linksPresent = "ENILinksPresent"

// detach takes an ENI off its instance behind Berth's back, and waits until it is there again. Daemons of callers
// list ENIs once an hour, so only the link says that it is gone.
func detach(t *testing.T, l *lab.Lab, e vpc.ENI) {
	t.Helper()
	before := e.Attachment.ID
	harness.OK(t, l.Cloud.ENIs.Detach(before, true))
	harness.Eventually(t, patience, e.ID+" is attached again", func() error {
		now, ok := l.Snapshot().ENI(e.ID)
		if !ok || now.Attachment == nil || now.Attachment.ID == before {
			return fmt.Errorf("it is %+v", now)
		}
		return nil
	})
}

// links takes the link of an ENI away from a node, by its link and by its attachment.
func links(t *testing.T, l *lab.Lab, n, other *node.Node) {
	far, err := other.Pod("far")
	harness.OK(t, err)
	used := harness.ENIs(l, n)[1]
	i := slices.IndexFunc(n.Pods(), func(p *node.Pod) bool { return used.Owns(p.Addr()) })
	p := n.Pods()[i]
	works := func() {
		t.Helper()
		condition(t, n, linksPresent, introspect.True)
		harness.Eventually(t, patience, p.Name+" talks again", func() error { return harness.Talk(t, p, far) })
	}

	move(t, n.Netns, p.Netns(), used)
	if c := condition(t, n, linksPresent, introspect.False); !harness.Says(c.Message, used.ID) {
		t.Errorf("the condition says %q", c.Message)
	}
	if got := harness.Add(t, n, "meanwhile"); used.Owns(got.Addr()) {
		t.Errorf("a pod got %v of an ENI without a link", got.Addr())
	}
	move(t, p.Netns(), n.Netns, used)
	works()
	harness.Remove(t, n, "meanwhile")

	detach(t, l, used)
	works()
	harness.Settle(t, l)
}

// move puts the link of an ENI into another network namespace.
func move(t *testing.T, from, to string, e vpc.ENI) {
	t.Helper()
	target, err := os.Open(to)
	harness.OK(t, err)
	defer target.Close()
	harness.OK(t, ns.Netlink(from, func(h *netlink.Handle) error {
		list, err := h.LinkList()
		if err != nil {
			return err
		}
		for _, link := range list {
			if bytes.Equal(link.Attrs().HardwareAddr, e.MAC) {
				return h.LinkSetNsFd(link, int(target.Fd()))
			}
		}
		return fmt.Errorf("no link has the MAC address of %s", e.ID)
	}))
}
