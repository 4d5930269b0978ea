package egressgateway

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// ownVariable tells a process of TestOwnNamespace that it is the gateway.
const ownVariable = "BERTH_TEST_OWN_NAMESPACE"

// TestOwnNamespace: a process with CAP_NET_ADMIN only, as in a gateway's container, changes and reads its own
// namespace; without tunnels on a kernel that lacks Foo over UDP.
func TestOwnNamespace(t *testing.T) {
	if os.Getenv(ownVariable) != "" {
		asGateway(t)
		return
	}
	path := nstest.New(t, "berth-own")
	// That of lo is more than a tunnel can have.
	err := ns.Netlink(path, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		via := &netlink.Route{LinkIndex: lo.Attrs().Index, Gw: net.IPv4(10, 1, 0, 1), Flags: int(netlink.FLAG_ONLINK)}
		return errors.Join(err, h.LinkSetMTU(lo, 1500), h.LinkSetUp(lo), h.RouteAdd(via))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = ns.Do(path, func() error {
		cmd := exec.Command("setpriv", "--bounding-set", "-all,+net_admin", "--", os.Args[0], "-test.run=^TestOwnNamespace$", "-test.v")
		cmd.Env = append(os.Environ(), ownVariable+"=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func asGateway(t *testing.T) {
	if _, err := Open("/proc/self/ns/net"); err == nil || !strings.Contains(err.Error(), unix.EPERM.Error()) {
		t.Fatalf("entering a namespace: %v, want it not permitted: this process is no gateway", err)
	}
	k, err := OpenOwn()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	own := netip.MustParseAddr("10.1.0.2")
	if list, err := k.Routers(); err != nil || len(list) != 1 || list[0] != own.Prev() {
		t.Errorf("routers %v, %v, want %s", list, err, own.Prev())
	}
	err = k.Apply(t.Context(), Setup{
		Link: "lo", Addrs: []netip.Addr{own}, Port: 5555, Destinations: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
		Clients: []Client{{UID: "1", Addrs: []netip.Addr{own.Next()}}},
	})
	if err != nil && !errors.Is(err, tunnel.ErrNoFoU) {
		t.Errorf("apply: %v", err)
	}
	conn, err := k.at.NFTables()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil || !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tunnel.Table }) {
		t.Errorf("there are tables %v, %v, want %s", tables, err, tunnel.Table)
	}
	if _, err := k.Counters(); err != nil {
		t.Error(err)
	}
	if _, _, err := k.Connections(); err != nil {
		t.Error(err)
	}
	if _, err := k.ConnectionsRefused(); err != nil {
		t.Error(err)
	}
	if _, err := k.OpenConnections(); err != nil {
		t.Error(err)
	}
}
