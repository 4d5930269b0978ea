package ovn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/client"

	"github.com/berthnet/berth/lab/network/openvswitch"
)

// needed are the programs that the package runs.
var needed = []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl"}

// Installed returns an error if a program that the package runs is missing. It names the program and how to install it.
func Installed() error {
	_, err := openvswitch.Find("ovn", needed...)
	return err
}

// Options describe an OVN. All are required.
type Options struct {
	Dir   string // for sockets, databases and logs; short, because of socket paths
	Netns string // namespace of the central programs
}

// startTimeout is much longer than any of the programs takes.
const startTimeout = 2 * time.Minute

// OVN is a running OVN. It is safe for concurrent use.
type OVN struct {
	opts    Options
	central openvswitch.Runner
	nb      client.Client

	applying sync.Mutex // held during Apply
	applied  State      // guarded by applying: the last state written
	written  bool       // likewise: whether a state was written

	mu      sync.Mutex      // guards all below; never held across I/O
	up      map[string]bool // ports that are up
	onState func(port string, up bool)
	nodes   map[string]*Switch
	numbers map[int]bool // of nodes
	closed  bool
}

// Start runs OVN's databases and northd, and creates the link between nodes. Leftovers of another OVN are an error.
func Start(ctx context.Context, o Options) (*OVN, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	found, err := openvswitch.Find("ovn", needed...)
	if err != nil {
		return nil, err
	}
	v := &OVN{
		opts: o, nodes: map[string]*Switch{}, numbers: map[int]bool{}, up: map[string]bool{}, onState: func(string, bool) {},
		central: openvswitch.Runner{Programs: found, Who: "OVN", Netns: o.Netns, Dir: o.Dir, Logs: filepath.Join(o.Dir, "log")},
	}
	if err := v.raise(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start OVN: %w", err), v.Close())
	}
	return v, nil
}

func (v *OVN) raise(ctx context.Context) error {
	if err := os.MkdirAll(v.central.Logs, 0o755); err != nil {
		return err
	}
	if err := v.raiseUnderlay(); err != nil {
		return err
	}
	c := &v.central
	for _, db := range []string{"nb", "sb"} {
		if err := c.Serve(ctx, db, c.In(db+".db"), c.Schema("ovn-nbctl", "ovn/ovn-"+db+".ovsschema")); err != nil {
			return err
		}
	}
	// Otherwise northd and the first controller both create the first row of the other's database.
	if err := v.nbctl(ctx, "init"); err != nil {
		return err
	}
	if err := c.Once(ctx, "ovn-sbctl", "--no-leader-only", "--db=unix:"+c.In("sb.sock"), "init"); err != nil {
		return err
	}
	if _, err := c.Start("ovn-northd", "ovn-northd", "--ovnnb-db=unix:"+c.In("nb.sock"), "--ovnsb-db=unix:"+c.In("sb.sock")); err != nil {
		return err
	}
	return v.watch(ctx)
}

func (v *OVN) nbctl(ctx context.Context, args ...string) error {
	return v.central.Once(ctx, "ovn-nbctl", append([]string{"--no-leader-only", "--db=unix:" + v.central.In("nb.sock")}, args...)...)
}

// Alive returns an error if one of the programs has exited by itself.
func (v *OVN) Alive() error {
	errs := []error{v.central.Alive()}
	for _, s := range v.Switches() {
		errs = append(errs, s.runner.Alive())
	}
	return errors.Join(errs...)
}

// Close kills all programs. The caller removes the namespaces and their links. A second Close does nothing.
func (v *OVN) Close() error {
	v.mu.Lock()
	closed := v.closed
	v.closed = true
	v.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	for _, s := range v.Switches() {
		errs = append(errs, v.RemoveNode(s.Node))
	}
	if v.nb != nil {
		v.nb.Close()
	}
	return errors.Join(append(errs, v.central.Kill())...)
}
