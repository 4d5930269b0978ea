package podif

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// FillChecksums makes the kernel compute the checksums of packets that a link sends (ethtool(8), "tx off"). By default
// it leaves them to a network card, and a user space switch, such as Open vSwitch with datapath_type netdev, forwards
// packets without checksums.
func FillChecksums(ns netns.NsHandle, link string) error {
	err := rtnl.InNetns(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		value := ethtoolValue{cmd: ethtoolSTxCsum}
		request, err := unix.NewIfreq(link)
		if err != nil {
			return err
		}
		// struct ifreq: the name, then a pointer for the ioctl (netdevice(7)).
		raw := (*ifreqData)(unsafe.Pointer(request))
		raw.data = unsafe.Pointer(&value)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(raw)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // the kernel always computes them
	}
	if err != nil {
		return fmt.Errorf("turn off checksum offload on %s: %w", link, err)
	}
	return nil
}

// ethtoolSTxCsum is ETHTOOL_STXCSUM of linux/ethtool.h.
const ethtoolSTxCsum = 0x17

type ethtoolValue struct{ cmd, data uint32 }

type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}
