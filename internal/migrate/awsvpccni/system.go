package awsvpccni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/adopt"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/install"
)

var _ = failpoint.Register("migrate.checkpoint.after", "migrate.hold.after", "migrate.conflist.after", "migrate.setup.after", "migrate.adopted.after",
	"rollback.staged.after", "rollback.tables.after", "rollback.returned.after", "rollback.cleared.after", "rollback.conflist.after", "rollback.uninstall.after")

// Metadata is the metadata service of the instance.
type Metadata interface {
	Identity(ctx context.Context) (cloud.Identity, error)
	AttachedENIs(ctx context.Context) ([]cloud.AttachedENI, error)
}

// Options describe the node. It is the one of the calling thread's network namespace.
type Options struct {
	Config    config.Config // Berth's settings, as berthd has them
	Metadata  Metadata
	RunDir    string   // of ipamd, /var/run/aws-node
	CNICache  string   // of container runtimes, /var/lib/cni
	NetnsDirs []string // where container runtimes keep network namespaces
	Proc      string   // /proc
	Clock     clock.Clock
	Log       *slog.Logger
}

// Node is the node that is migrated. It implements migrate.System.
type Node struct {
	o     Options
	files files
	host  *netlink.Handle
}

var _ migrate.System = (*Node)(nil)

// New opens the node. Close releases it.
func New(o Options) (*Node, error) {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in the node's network namespace: %w", err)
	}
	return &Node{o: o, host: host, files: files{run: o.RunDir, conf: o.Config.CNIConfDir, cni: o.CNICache}}, nil
}

// Close releases the socket.
func (n *Node) Close() error {
	n.host.Close()
	return nil
}

func (n *Node) records() string { return filepath.Join(n.o.Config.StateDir, "attachments") }

// Plan implements migrate.System.
func (n *Node) Plan(ctx context.Context) (migrate.Plan, error) {
	s, err := n.survey(ctx)
	if err != nil {
		return migrate.Plan{}, err
	}
	p := s.plan()
	if err := n.files.formerRuns(ctx); err != nil {
		p.Found = append(p.Found, err.Error()+"; apply is refused until it has ended")
	}
	return p, nil
}

// formerRuns returns an error if ipamd answers.
func (f files) formerRuns(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, at := range []struct{ network, address string }{
		{"unix", filepath.Join(f.run, "ipamd.sock")},
		{"tcp", "127.0.0.1:50051"}, // before version 1.22
	} {
		c, err := (&net.Dialer{}).DialContext(ctx, at.network, at.address)
		if err == nil {
			_ = c.Close()
			return fmt.Errorf("ipamd answers at %s: the Amazon VPC CNI runs on this node", at.address)
		}
	}
	return nil
}

// begin is the interlock: it refuses while either daemon runs, and berthd cannot start until end is called.
func (n *Node) begin(ctx context.Context) (end func(), err error) {
	lock, err := daemon.AcquireLock(ctx, n.o.Config.StateDir, n.o.Clock, n.o.Log)
	if err != nil {
		return nil, fmt.Errorf("%w: stop it first", err)
	}
	if err := n.files.formerRuns(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: stop it first", err), lock.Release())
	}
	return func() { _ = lock.Release() }, nil
}

// open opens the records.
func (n *Node) open(s survey) (*attachment.Store, error) {
	boot, err := daemon.BootID()
	if err != nil {
		return nil, err
	}
	store, bad, err := attachment.Open(n.records(), attachment.Node{InstanceID: s.instance.InstanceID, BootID: boot}, n.o.Log)
	if err == nil && len(bad) > 0 {
		err = fmt.Errorf("record %s is damaged: %w", bad[0].File, bad[0].Reason)
	}
	return store, err
}

// What a step reports of ipamd's checkpoint.
const (
	setCheckpointAside = "set ipamd's checkpoint aside: ipamd refuses to start"
	putCheckpointBack  = "put ipamd's checkpoint back: ipamd can start"
)

// progress collects what a step changed.
type progress struct{ migrate.Report }

// did records a change, and passes a failpoint.
func (p *progress) did(changed bool, err error, what, point string) error {
	if changed {
		p.Changed = append(p.Changed, what)
	}
	if err != nil {
		return err
	}
	return failpoint.Hit(point)
}

// exclusively runs a command on the surveyed node while neither daemon runs, and reports each pod's fate afterwards.
func (n *Node) exclusively(ctx context.Context, command string, run func(survey, *progress) error) (migrate.Report, error) {
	p := &progress{migrate.Report{From: migrate.AmazonVPCCNI, Command: command}}
	end, err := n.begin(ctx)
	if err != nil {
		return p.Report, err
	}
	defer end()
	s, err := n.survey(ctx)
	if err != nil {
		return p.Report, err
	}
	err = run(s, p)
	if after, again := n.survey(ctx); again == nil {
		p.Pods = after.plan().Pods
	}
	return p.Report, err
}

// Apply implements migrate.System.
func (n *Node) Apply(ctx context.Context) (migrate.Report, error) {
	return n.exclusively(ctx, "apply", func(s survey, p *progress) error {
		if err := s.blocked(); err != nil {
			return err
		}
		return n.apply(ctx, s, p)
	})
}

// blocked returns an error if the plan has an obstacle that blocks.
func (s survey) blocked() error {
	blocked := s.plan().Blocked()
	if len(blocked) == 0 {
		return nil
	}
	return fmt.Errorf("%s. %s", blocked[0].What, blocked[0].Remedy)
}

func (n *Node) apply(ctx context.Context, s survey, p *progress) error {
	changed, err := n.files.setAside()
	if err := p.did(changed, err, setCheckpointAside, "migrate.checkpoint.after"); err != nil {
		return err
	}
	if changed { // ipamd may have written it after the survey
		if s, err = n.survey(ctx); err == nil {
			err = s.blocked()
		}
		if err != nil {
			return err
		}
	}
	held, err := install.Hold(n.o.Config.CNIConfDir, n.o.Config.CNIConfName, install.Network{Name: n.o.Config.CNINetwork, Socket: n.o.Config.Socket})
	if err := p.did(held, err, "wrote Berth's CNI configuration: new pods wait for berthd", "migrate.hold.after"); err != nil {
		return err
	}
	changed, err = n.files.hideConflist()
	if err := p.did(changed, err, "set "+n.files.list()+" aside", "migrate.conflist.after"); err != nil {
		return err
	}
	store, err := n.open(s)
	if err != nil {
		return err
	}
	data, err := n.setUp(ctx, s)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }()
	if err := failpoint.Hit("migrate.setup.after"); err != nil {
		return err
	}
	a, err := adopt.New(store, data, "", n.o.Clock.Now, n.o.Log)
	if err != nil {
		return err
	}
	defer func() { _ = a.Close() }()
	var errs []error
	for _, one := range s.pods() {
		if one.Fate != migrate.Adopt && one.Fate != migrate.Adopted {
			continue
		}
		changed, err := a.TakeOver(ctx, one.adopt)
		if changed {
			p.Changed = append(p.Changed, "adopted "+describe(one.Pod))
		}
		if err != nil {
			p.Problems = append(p.Problems, err.Error())
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if s, err = n.survey(ctx); err != nil {
		return err
	}
	if both := s.both(n.files.formerRuns(ctx)); len(both) > 0 { // it was starting when this step began
		p.Problems = append(p.Problems, both...)
		return errors.New("ipamd started meanwhile: stop it, and repeat the command")
	}
	stale, err := n.removeStale(s)
	p.Changed = append(p.Changed, stale...)
	return cmp.Or(err, failpoint.Hit("migrate.adopted.after"))
}

func describe(p migrate.Pod) string {
	var addrs []string
	for _, a := range p.Addresses {
		addrs = append(addrs, a.String())
	}
	return fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, strings.Join(addrs, ", "))
}

// Rollback implements migrate.System.
func (n *Node) Rollback(ctx context.Context) (migrate.Report, error) {
	return n.exclusively(ctx, "rollback", func(s survey, p *progress) error {
		if s.quarantine > 0 {
			return fmt.Errorf("%d records of attachments are damaged: look at the files that end in .bad in %s", s.quarantine, n.records())
		}
		begun, err := s.begun()
		if err != nil {
			return err
		}
		if !begun {
			changed, err := n.files.unfence()
			if changed {
				p.Changed = append(p.Changed, "removed the checkpoint that keeps ipamd from starting")
			}
			return err
		}
		if err := p.convertible(s); err != nil {
			return err
		}
		return n.rollback(ctx, s, p)
	})
}

// begun reports whether there is something to roll back. A reboot has ended ipamd's pods and removed its checkpoint, which is
// on a tmpfs; then the CNI configuration that is set aside tells that the migration was not finished.
func (s survey) begun() (bool, error) {
	if s.aside || s.hidden {
		return true, nil
	}
	if len(s.records) > 0 {
		return false, fmt.Errorf("neither ipamd's checkpoint nor %s is set aside, and %d pods are Berth's: the migration was finished, or never applied", conflist, len(s.records))
	}
	return false, nil
}

// convertible returns an error if pods have no form of the Amazon VPC CNI, and reports them as problems.
func (p *progress) convertible(s survey) error {
	if p.Problems = s.unconvertible(); len(p.Problems) > 0 {
		return errors.New("pods that the Amazon VPC CNI cannot serve are left: delete them first")
	}
	return nil
}

// unconvertible describes pods for which the Amazon VPC CNI has no form.
func (s survey) unconvertible() (list []string) {
	for _, r := range s.records {
		var why string
		switch {
		case len(r.NICs) > 0:
			why = "it has NICs that are ports of a VPC"
		case r.Chained != nil || r.Lease.Empty():
			why = "it has no address of an ENI"
		case r.Lease.IPv4.IsValid() && r.Lease.IPv6.IsValid():
			why = "it has addresses of both families"
		case r.Pod.Name == "":
			why = "its name is unknown"
		case r.State != attachment.Ready:
			why = "its removal is not finished: start berthd once more"
		default:
			continue
		}
		list = append(list, fmt.Sprintf("%s/%s (%s): %s", r.Pod.Namespace, r.Pod.Name, r.Key.ContainerID, why))
	}
	return list
}

func (n *Node) rollback(ctx context.Context, s survey, p *progress) error {
	if !s.aside { // from here on ipamd cannot start
		changed, err := n.files.setAside()
		if changed { // ipamd may have written it after the survey
			p.Changed = append(p.Changed, setCheckpointAside)
			if err == nil {
				s, err = n.survey(ctx)
			}
			if err == nil {
				err = errors.Join(s.unreadable, p.convertible(s))
			}
		}
		if err != nil {
			return err
		}
	}
	if err := p.did(false, n.files.stage(s.staged()), "", "rollback.staged.after"); err != nil {
		return err
	}
	if err := p.did(false, n.setTables(s), "", "rollback.tables.after"); err != nil {
		return err
	}
	store, err := n.open(s)
	if err != nil {
		return err
	}
	a, err := adopt.New(store, nil, "", n.o.Clock.Now, n.o.Log)
	if err != nil {
		return err
	}
	defer func() { _ = a.Close() }()
	for _, r := range s.records {
		if err := a.GiveBack(ctx, r, s.former(r), nil); err != nil {
			return err
		}
		p.Changed = append(p.Changed, fmt.Sprintf("gave %s/%s back", r.Pod.Namespace, r.Pod.Name))
	}
	if err := failpoint.Hit("rollback.returned.after"); err != nil {
		return err
	}
	cleared, err := n.clear(ctx)
	p.Changed = append(p.Changed, cleared...)
	if err := p.did(false, err, "", "rollback.cleared.after"); err != nil {
		return err
	}
	changed, err := n.files.showConflist()
	if err := p.did(changed, err, "put "+n.files.list()+" back", "rollback.conflist.after"); err != nil {
		return err
	}
	changed, err = install.Uninstall(n.o.Config.CNIConfDir, n.o.Config.CNIConfName)
	if err := p.did(changed, err, "removed Berth's CNI configuration", "rollback.uninstall.after"); err != nil {
		return err
	}
	changed, err = n.files.restore()
	if changed {
		p.Changed = append(p.Changed, putCheckpointBack)
	}
	return err
}

// former is the state that ipamd and its plugin expect of a pod that Berth created.
func (s survey) former(r attachment.Record) attachment.Adopted {
	f := attachment.Adopted{From: migrate.AmazonVPCCNI, Network: s.formerName, HostLink: s.prefix + linkSuffix(r.Pod.Namespace, r.Pod.Name), Created: r.Since}
	for _, a := range r.Lease.Addrs() {
		host := rtnl.HostPrefix(a)
		f.Routes = append(f.Routes, attachment.AdoptedRoute{Destination: host, Table: mainTable, Protocol: unix.RTPROT_BOOT})
		f.Rules = append(f.Rules, attachment.AdoptedRule{Priority: ruleToPod, To: host, Table: mainTable})
		if r.Lease.Uplink > 0 {
			f.Rules = append(f.Rules, attachment.AdoptedRule{Priority: ruleFromPod, From: host, Table: tableOf(r.Lease.Uplink)})
		}
	}
	return f
}

// staged is the checkpoint from which ipamd starts after the rollback: pods that Berth adopted or created, and those
// that are the Amazon VPC CNI's. Entries of pods that ended are left out. Whether a pod without a name ended, nobody
// knows, unless Berth has given its address to another one.
func (s survey) staged() (c foreign.Checkpoint) {
	done := map[attachment.Key]bool{}
	for _, a := range s.checkpoint.Allocations {
		r, recorded := s.recordOf(a)
		_, lives := s.linkOf(a.Metadata.Namespace, a.Metadata.Pod)
		lives = lives || a.Metadata.Pod == "" && !slices.ContainsFunc(s.records, func(r attachment.Record) bool { return slices.Equal(r.OwnAddrs(), a.Addrs()) })
		if recorded && slices.Equal(r.OwnAddrs(), a.Addrs()) {
			done[r.Key] = true
		} else if recorded || !lives {
			continue
		}
		c.Allocations = append(c.Allocations, a)
	}
	for _, r := range s.records {
		if done[r.Key] {
			continue
		}
		a := foreign.Allocation{
			NetworkName: s.formerName, ContainerID: r.Key.ContainerID, IfName: r.Key.IfName, IPv4: r.Lease.IPv4, IPv6: r.Lease.IPv6,
			Timestamp: r.Since.UnixNano(), Metadata: foreign.Metadata{Namespace: r.Pod.Namespace, Pod: r.Pod.Name, Interfaces: 1},
		}
		if r.Adopted != nil {
			a.NetworkName = cmp.Or(r.Adopted.Network, r.Key.Network)
		}
		c.Allocations = append(c.Allocations, a)
	}
	return c
}
