package daemon

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/web"
)

// Programs on the node that connect and say nothing do not keep the plugin out.
func TestSilentConnectionsGiveWayToThePlugin(t *testing.T) {
	n := newNode(t, "10.0.0.5")
	r := n.restart(nil)
	var silent []net.Conn
	for range 2 * pluginConnections {
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		silent = append(silent, c)
	}
	mustAdd(t, r, "a", n.newNetns("a"))
	if _, err := r.client.Status(within(t), &rpc.StatusRequest{}); err != nil {
		t.Error(err)
	}
	open := 0
	for _, c := range silent {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := io.ReadAll(c); err != nil { // not its end
			open++
		}
	}
	if open >= pluginConnections {
		t.Errorf("%d silent connections are open", open)
	}
}

// Half of what a program usually may have at least stays free for its work.
func TestListenersLeaveDescriptors(t *testing.T) {
	if n := pluginConnections + 2*web.Connections; n > 1024/2 {
		t.Errorf("the listeners take up to %d connections", n)
	}
}
