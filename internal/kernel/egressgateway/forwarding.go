package egressgateway

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNotForwarded tells that the namespace does not pass packets on, which cannot be changed from inside a
// container that is not privileged.
var ErrNotForwarded = errors.New("packets are not forwarded here")

// forwardFrom has the kernel forward what comes from a link by IPv4. By netlink CAP_NET_ADMIN is enough,
// while /proc/sys is read-only in a container (rtnetlink(7), IFLA_AF_SPEC).
func (k *Kernel) forwardFrom(name string, index int) error {
	return k.inside(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
		msg.Index = int32(index)
		req.AddData(msg)
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil).AddRtAttr(confForwarding, nl.Uint32Attr(1))
		req.AddData(spec)
		if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return fmt.Errorf("have packets from %s forwarded: %w", name, err)
		}
		return nil
	})
}

// IFLA_INET_CONF (linux/if_link.h), IPV4_DEVCONF_FORWARDING (linux/ip.h).
const (
	iflaInetConf   = 1
	confForwarding = 1
)

// forwarded finds families that have destinations and are not forwarded.
func (k *Kernel) forwarded(s Setup) error {
	return k.inside(func() error {
		var problems []error
		for _, of := range families {
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
					ErrNotForwarded, digit(of), strings.ReplaceAll(setting, "/", ".")))
			}
		}
		return errors.Join(problems...)
	})
}
