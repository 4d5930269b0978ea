package tunnel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Supported tells whether the kernel receives FoU, which it loads the module for if it has
// one. The devices show only when they are added (Ensure). Errors: egress.ErrNoFoU.
func Supported() error {
	if _, err := netlink.GenlFamilyGet(netlink.FOU_GENL_NAME); err != nil {
		return noFoU(err, "fou")
	}
	return nil
}

// noFoU makes egress.ErrNoFoU of the kernel's word for a generic netlink family or a link type that
// it does not know.
func noFoU(err error, module string) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%w: module %s is not there (modprobe %s on the node): %w", ErrNoFoU, module, module, err)
	}
	return err
}

// noDevice does so for a device: EOPNOTSUPP tells of a link type that is not known, EINVAL of an
// encapsulation that is not, as no other attribute can be wrong.
func noDevice(err error, link netlink.Link) error {
	device, encap := "ipip", "fou"
	if link.Type() == "ip6tnl" {
		device, encap = "ip6_tunnel", "fou6"
	}
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: module %s is not there (modprobe %s on the node): %w", ErrNoFoU, encap, encap, err)
	}
	return noFoU(err, device)
}
