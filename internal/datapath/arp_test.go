package datapath

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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
