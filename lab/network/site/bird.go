package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/lab/run/proc"
)

// bird is one process of BIRD.
type bird struct {
	*proc.Process
	control string // its socket
}

func newBird(dir, name, netns, config string) *bird {
	base := filepath.Join(dir, "bird-"+name)
	b := &bird{control: base + ".ctl"}
	b.Process = proc.New("BIRD of "+name, base+".log", func() proc.Command {
		path, err := birdPath()
		if err == nil {
			err = os.WriteFile(base+".conf", []byte(config), 0o644)
		}
		if err != nil {
			path = "bird: " + err.Error() // Start fails with it
		}
		return proc.Command{Path: path, Netns: netns, Args: []string{"-f", "-c", base + ".conf", "-s", b.control}}
	})
	return b
}

// startTimeout is much longer than BIRD takes to read its configuration.
const startTimeout = 2 * time.Minute

// holdTime, in seconds, is how long a neighbour may be silent before its routes are withdrawn (RFC 4271 section 4.2). It
// is longer than a process may stall on a busy machine. The session of a removed node ends with its connection.
const holdTime = 90

// start starts BIRD and waits until it listens on its control socket.
func (b *bird) start() error {
	if err := b.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return b.Wait(ctx, func() error { return proc.Listens(ctx, b.control) })
}

// birdPath finds BIRD. Debian installs it in /usr/sbin, which is usually only in root's PATH.
func birdPath() (string, error) {
	for _, name := range []string{"bird", "/usr/sbin/bird"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("BIRD 2 is needed and not installed: it is in the Debian package bird2 (`hack/deps.sh pool` installs it)")
}

// Announce runs BIRD in the namespaces of one node and of its router, as in a site, with their addresses on the network
// between them. stop ends both.
func Announce(dir, node, router string, own, via Addrs) (stop func() error, err error) {
	between := [2]netip.Prefix{netip.PrefixFrom(via.IPv4, 24).Masked(), netip.PrefixFrom(via.IPv6, 64).Masked()}
	birds := []*bird{
		newBird(dir, "router", router, routerConfig(via.IPv4, between[0].String(), between[1].String())),
		newBird(dir, "node", node, nodeConfig(own, via, routerNumber+1)),
	}
	stop = func() (err error) {
		for _, b := range birds {
			if b.Running() {
				err = errors.Join(err, b.Kill())
			}
		}
		return err
	}
	for _, b := range birds {
		if err := b.start(); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	return stop, nil
}

// routerConfig returns the configuration of the router's BIRD. The router accepts BGP sessions from the nodes' links, announces
// to each node the routes of the others, and forwards accordingly.
func routerConfig(id netip.Addr, links4, links6 string) string {
	return fmt.Sprintf(`log stderr { warning, error, fatal, bug };
router id %[3]s;
protocol device {}
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; }
template bgp node {
	local as %[1]d;
	passive;
	hold time %[2]d;
}
protocol bgp nodes4 from node {
	neighbor range %[4]s external;
	dynamic name "node4_";
	ipv4 { import all; export where source = RTS_BGP; next hop self; };
}
protocol bgp nodes6 from node {
	neighbor range %[5]s external;
	dynamic name "node6_";
	ipv6 { import all; export where source = RTS_BGP; next hop self; };
}
`, routerNumber, holdTime, id, links4, links6)
}

func (h *host) config() string { return nodeConfig(h.addrs(), h.routers(), h.as()) }

// nodeConfig returns the configuration of a node's BIRD: routes in Berth's export table are announced to the router, and the
// router's routes go to the main table.
func nodeConfig(a, r Addrs, as int) string {
	return fmt.Sprintf(`log stderr { warning, error, fatal, bug };
router id %[1]s;
protocol device {}
protocol kernel main4 { ipv4 { import none; export where source = RTS_BGP; }; }
protocol kernel main6 { ipv6 { import none; export where source = RTS_BGP; }; }
ipv4 table blocks4;
ipv6 table blocks6;
protocol kernel pods4 { kernel table %[6]d; learn; scan time 5; ipv4 { table blocks4; import all; export none; }; }
protocol kernel pods6 { kernel table %[6]d; learn; scan time 5; ipv6 { table blocks6; import all; export none; }; }
protocol pipe { table master4; peer table blocks4; import all; export none; }
protocol pipe { table master6; peer table blocks6; import all; export none; }
template bgp upstream {
	local as %[5]d;
	hold time %[8]d;
	connect delay time 1;
	connect retry time 1;
	error wait time 1, 2;
}
protocol bgp router4 from upstream {
	neighbor %[2]s as %[7]d;
	ipv4 { import all; export where proto = "pods4"; next hop self; };
}
protocol bgp router6 from upstream {
	neighbor %[4]s as %[7]d;
	ipv6 { import all; export where proto = "pods6"; next hop self; };
}
`, a.IPv4, r.IPv4, a.IPv6, r.IPv6, as, ExportTable, routerNumber, holdTime)
}
