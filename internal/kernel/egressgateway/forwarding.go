package egressgateway

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// ErrNotForwarded tells that the namespace does not pass packets on, which cannot be changed from inside a
// container that is not privileged.
var ErrNotForwarded = errors.New("packets are not forwarded here")

// forwardFrom has the kernel forward what comes from a link by IPv4.
func (k *Kernel) forwardFrom(name string, index int) error {
	if err := k.at.SetIPv4Setting(index, tunnel.Forwarding, 1); err != nil {
		return fmt.Errorf("have packets from %s forwarded: %w", name, err)
	}
	return nil
}

// forwarded finds families that have destinations and are not forwarded.
func (k *Kernel) forwarded(s Setup) error {
	return k.at.Inside(func() error {
		var problems []error
		for _, of := range tunnel.Families {
			if len(s.destinations(of)) == 0 || !s.own(of).IsValid() {
				continue
			}
			// IPv4 has a switch for each link; IPv6 one for all, and those of links are for hosts and
			// routers to tell apart.
			setting := filepath.Join("net/ipv4/conf", s.Link, "forwarding")
			if of == unix.AF_INET6 {
				setting = "net/ipv6/conf/all/forwarding"
			}
			text, err := os.ReadFile(filepath.Join("/proc/sys", setting))
			if err != nil {
				problems = append(problems, err)
				continue
			}
			if strings.TrimSpace(string(text)) != "1" {
				problems = append(problems, fmt.Errorf("%w: IPv%d needs %s = 1 in the pod: berthd sets it for pods with the annotation berth.dev/egress-gateway, another network by securityContext.sysctls of the Egress's template",
					ErrNotForwarded, tunnel.Digit(of), strings.ReplaceAll(setting, "/", ".")))
			}
		}
		return errors.Join(problems...)
	})
}
