package site

import (
	"context"
	"errors"
	"fmt"
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

func (s *Site) newBird(name, netns, config string) *bird {
	base := filepath.Join(s.opts.Dir, "bird-"+name)
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

// startTimeout is far longer than BIRD takes to read its configuration.
const startTimeout = 2 * time.Minute

// holdTime, in seconds, is how long a neighbour may be silent before its routes
// are withdrawn (RFC 4271 section 4.2). It is longer than a process may stall on
// a busy machine. The session of a removed node ends with its connection.
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

// The router speaks BGP with each peer that connects from a node's link, announces to each
// the others' routes, and forwards by them.
var routerConfig = fmt.Sprintf(`log stderr { warning, error, fatal, bug };
router id 172.20.0.1;
protocol device {}
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; }
template bgp node {
	local as %d;
	passive;
	hold time %d;
}
protocol bgp nodes4 from node {
	neighbor range 172.20.0.0/16 external;
	dynamic name "node4_";
	ipv4 { import all; export where source = RTS_BGP; next hop self; };
}
protocol bgp nodes6 from node {
	neighbor range fd00:20::/32 external;
	dynamic name "node6_";
	ipv6 { import all; export where source = RTS_BGP; next hop self; };
}
`, routerNumber, holdTime)

// config is a node's BIRD: what is in Berth's export table goes to the router,
// what the router announces goes to the main table.
func (h *host) config() string {
	a, r := h.addrs(), h.routers()
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
`, a.IPv4, r.IPv4, a.IPv6, r.IPv6, h.as(), ExportTable, routerNumber, holdTime)
}
