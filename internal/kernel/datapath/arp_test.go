package datapath

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// A node whose kernel has no tables of family arp starts all the same. Any other
// refusal is an error, also if what follows it in the transaction finds nothing.
func TestKernelWithoutARPTables(t *testing.T) {
	for _, tc := range []struct {
		told []syscall.Errno // by messages of the transaction that fail
		want bool
	}{
		{[]syscall.Errno{unix.ENOENT, unix.ENOENT}, true},
		{[]syscall.Errno{unix.EOPNOTSUPP, unix.ENOENT, unix.ENOENT}, true},
		{[]syscall.Errno{unix.EAFNOSUPPORT}, true},
		{[]syscall.Errno{unix.EPERM}, false},
		{[]syscall.Errno{unix.EINVAL, unix.ENOENT}, false},
		{[]syscall.Errno{unix.ENOMEM, unix.ENOENT, unix.ENOENT}, false},
	} {
		var joined error
		for _, errno := range tc.told {
			joined = errors.Join(joined, &netlink.OpError{Op: "receive", Err: errno})
		}
		if got := isWithoutARP(fmt.Errorf("conn.Receive: %w", joined)); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.told, got, tc.want)
		}
	}
}

// Pods of another network on the node ask who has its addresses, and are answered, whatever their links
// are called. Only Berth's own pods ask in vain.
func TestARPOfOthers(t *testing.T) {
	v := newVPC(t)
	v.host.serveTCP(":81")
	for i, c := range []struct {
		link   string
		group  int
		answer bool
	}{
		{"veth1a2b3c4d", 0, true},
		{"cali1a2b3c4d5e6", 0, true},
		{LinkPrefix + "0", 0, true},
		{HostLinkName("other", "c", "eth0"), 0, true},
		{LinkPrefix + "12345678-9a", rtnl.PortGroup, false},
		{HostLinkName("berth", "d", "eth0"), podGroup, false},
		{HostLinkName("berth", "e", "eth0"), reapGroupMax, false},
	} {
		other := newSpace(t, "other")
		wire(v.host, c.link, other, "eth0")
		v.host.must(v.host.nl.LinkSetGroup(v.host.link(c.link), c.group))
		gateway := fmt.Sprintf("198.51.%d.1", i)
		v.host.address(c.link, gateway+"/24")
		other.address("eth0", fmt.Sprintf("198.51.%d.2/24", i))
		if c.answer {
			other.seenAs(gateway+":81", fmt.Sprintf("198.51.%d.2", i))
		} else {
			other.cannotReach("", gateway+":81")
		}
	}
}
