package policytable

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/policy"
)

// foreign changes the table as another program does: it adds a chain. portID is that of its socket; 0: the kernel chooses.
func foreign(w *world, portID uint32, chain string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends
		done <- func() error {
			const comm = "/proc/thread-self/comm"
			name, err := os.ReadFile(comm)
			if err == nil {
				err = os.WriteFile(comm, []byte("other"), 0)
			}
			if err != nil {
				return err
			}
			defer func() { _ = os.WriteFile(comm, name, 0) }() // it may be the process's first thread, which names the process
			conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(w.node), PID: portID})
			if err != nil {
				return err
			}
			defer conn.Close()
			attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
				{Type: unix.NFTA_CHAIN_TABLE, Data: append([]byte(Name), 0)}, {Type: unix.NFTA_CHAIN_NAME, Data: append([]byte(chain), 0)},
			})
			if err != nil {
				return err
			}
			of := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
			_, err = conn.SendMessages([]netlink.Message{
				{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request}, Data: of},
				{
					Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN, Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
					Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attributes...),
				},
				{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}, Data: of},
			})
			if err == nil {
				_, err = conn.Receive()
			}
			return err
		}()
	}()
	return <-done
}

// Changes by other programs are noticed, and none of the table's own is taken for one or makes the kernel drop messages, however many elements it
// has.
func TestOthersChangesAreNoticed(t *testing.T) {
	w := newWorld(t, nil)
	table, pod := New(w.node), pair("10.0.1.2", "fd00:1::2")
	p := isolated()
	p.Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.SetID{"pods-1"}, AnyPort: true}}
	elements := func(_ policy.SetID, yield func(policy.Element)) {
		for i := range 1 << 16 {
			yield(policy.Element{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})})
		}
	}
	chains := 0
	var changes <-chan string
	noticed := func(when string, portID uint32) {
		t.Helper()
		chains++
		must(t, foreign(w, portID, fmt.Sprint("foreign-", chains)))
		select {
		case what, ok := <-changes:
			if what != "a chain was added" {
				t.Errorf("%s: %q (%v), want that a chain was added", when, what, ok)
			}
		case <-time.After(patience):
			t.Errorf("%s: a change by another program is not noticed", when)
		}
	}
	own := func() {
		t.Helper()
		room := func(bytes int) { must(t, table.subscription.socket.SetReceiveBufferSize(bytes, false)) }
		room(1) // for one message
		defer room(1 << 20)
		table.Forget()
		must(t, table.Apply([]Pod{{Addrs: pod[:], Policies: []*policy.Policy{p}}}, elements, nil))
	}
	watch := func() (end func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		changes, err = table.Watch(ctx)
		must(t, err)
		return func() {
			cancel()
			for range changes { // until it is closed
			}
		}
	}
	end := watch()
	own()
	noticed("watched before the table is applied", 0)
	end()
	end = watch()
	own()
	noticed("watched after the table was applied", 0)
	table.mu.Lock()
	before := table.subscription.own
	table.disconnect()
	table.mu.Unlock()
	noticed("by a program with the port ID of a connection that was closed", before)
	own()
	noticed("after another connection of the table", 0)
	end()
	must(t, table.Remove())
}
