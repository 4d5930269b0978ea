package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/berthnet/berth/internal/rpc"
)

// However many ADDs wait for an address, a DEL and a STATUS get through. An ADD
// too many is told so at once, and so is none that need not wait.
func TestADDsThatWaitLeaveRoomForOthers(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	defer n.tick()()
	mustAdd(t, r, "first", n.newNetns("first"))
	ns := n.newNetns("waiting")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range maxWaiting {
		wg.Go(func() { _ = callAlone(ctx, r, "Add", addOf(fmt.Sprint("waiting-", i), ns)) })
	}
	waitFor(t, func() bool { return r.source.Waiting() == maxWaiting })
	patience := within(t)
	for range pluginConnections - maxWaiting {
		if err := callAlone(patience, r, "Add", addOf("late", ns)); err == nil || !strings.Contains(err.Error(), "no free address") {
			t.Fatalf("an ADD too many: %v", err)
		}
	}
	if err := callAlone(within(t), r, "Status", &rpc.StatusRequest{}); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	again := addOf("first", "/run/netns/first")
	if err := callAlone(within(t), r, "Add", again); err != nil {
		t.Errorf("an ADD that need not wait: %v", err)
	}
	if err := callAlone(within(t), r, "Del", delOf("first")); err != nil {
		t.Errorf("DEL: %v", err)
	}
}
