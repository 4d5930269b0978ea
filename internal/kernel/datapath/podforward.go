package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// forwarding lets a pod pass on packets between its interfaces
// (https://docs.kernel.org/networking/ip-sysctl.html, ip_forward and conf/all/forwarding).
// What another program in the pod's namespace does with these packets is its matter.
var forwarding = []rtnl.Sysctl{
	{Path: "net/ipv4/ip_forward", Value: "1"},
	{Path: "net/ipv6/conf/all/forwarding", Value: "1"},
}

// SetForwarding has the network namespace at a path forward IPv4 and, where the kernel has it,
// IPv6. Settings are below a folder, /proc/sys if empty. It is idempotent. Errors: ErrNoNetns,
// ErrNotNetns.
func SetForwarding(netnsPath, sysctls string) error {
	return inNetnsAt(netnsPath, func() error {
		for _, s := range forwarding {
			if _, err := s.Set(sysctls); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// CheckForwarding tells how the namespace differs from what SetForwarding makes of it.
func CheckForwarding(netnsPath string) error {
	return inNetnsAt(netnsPath, func() error {
		for _, s := range forwarding {
			switch now, right, err := s.Look(""); {
			case errors.Is(err, os.ErrNotExist):
			case err != nil:
				return err
			case !right:
				return fmt.Errorf("sysctl %s is %s", s, now)
			}
		}
		return nil
	})
}

func inNetnsAt(path string, do func() error) error {
	ns, err := rtnl.OpenNetns(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return rtnl.InNetns(ns, do)
}
