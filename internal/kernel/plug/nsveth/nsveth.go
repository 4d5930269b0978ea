// Package nsveth plugs ports that an agent of the VPC (Alcor's control agent) prepares on the node.
// The agent creates a veth, keeps one end, and puts the other into a network namespace of the VPC.
// That end is named veth and the first 11 characters of the port ID; the namespace is named vpc-ns
// (or vpc-ns-) and the ID of the VPC. The port is ready once the end is there (the design of NICs
// and VPCs in Arktos, "Alcor CNI Plugin"). Expect waits for it, Plug moves it into the pod and
// renames it, and Unplug moves it back under its old name.
package nsveth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

var _ = failpoint.Register("plug.nsveth.mark.after", "plug.nsveth.move.after", "plug.nsveth.pod.after",
	"plug.nsveth.return.before", "plug.nsveth.return.after")

// Limits for the wait for the agent.
const (
	DefaultWait = 3 * time.Second
	MaxWait     = time.Minute
	// briefly is the longest that Plug waits: its caller holds the lock of the pod. Expect waits
	// for Options.Wait.
	briefly = DefaultWait
)

// Options of New.
type Options struct {
	Dir      string        // where network namespaces are mounted; empty: /run/netns
	Prefixes []string      // name prefixes of VPCs' namespaces, all of which are tried; nil: vpc-ns and vpc-ns-
	Wait     time.Duration // for the agent; 0: DefaultWait, at most MaxWait
	Sysctls  string        // the sysctl folder; empty: /proc/sys
}

// Plugger plugs ports of kind Netns.
type Plugger struct {
	dir      string
	prefixes []string // longest first
	sysctls  string
	wait     time.Duration
	node     rtnl.NetnsID
	turns    plug.Turns
}

// New makes a Plugger for the node, whose network namespace is that of the calling thread.
func New(o Options) (*Plugger, error) {
	if o.Wait < 0 || o.Wait > MaxWait {
		return nil, fmt.Errorf("Wait: %s: want 0 to %s", o.Wait, MaxWait)
	}
	if len(o.Prefixes) == 0 {
		o.Prefixes = []string{"vpc-ns-", "vpc-ns"}
	}
	for _, p := range o.Prefixes {
		if p == "" || strings.ContainsAny(p, "/ ") || p[0] == '.' {
			return nil, fmt.Errorf("Prefixes: %q: want a file name prefix", p)
		}
	}
	prefixes := slices.Clone(o.Prefixes)
	slices.SortFunc(prefixes, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	node, err := rtnl.InspectNetns("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	return &Plugger{dir: cmp.Or(o.Dir, "/run/netns"), prefixes: prefixes, sysctls: o.Sysctls, wait: cmp.Or(o.Wait, DefaultWait), node: node}, nil
}

// candidates are the possible paths of a VPC's namespace: its name, with each of the prefixes.
func (p *Plugger) candidates(name string) ([]string, error) {
	for _, prefix := range p.prefixes {
		id, ok := strings.CutPrefix(name, prefix)
		if !ok || id == "" {
			continue
		}
		paths := []string{filepath.Join(p.dir, name)}
		for _, other := range p.prefixes {
			if other+id != name {
				paths = append(paths, filepath.Join(p.dir, other+id))
			}
		}
		return paths, nil
	}
	return nil, fmt.Errorf("VPCNetns: %q: want a name that begins with one of %q, the prefixes of VPCs' namespaces: %w", name, p.prefixes, plug.ErrInvalid)
}

// LinkName is the name of a port's link in the VPC's namespace.
func LinkName(r plug.Ref) string { return "veth" + r.Short() }

// Expect implements plug.Plugger: it waits for the agent, unless the port is already in the pod.
func (p *Plugger) Expect(ctx context.Context, w plug.Want) error {
	paths, err := p.accept(w)
	if err != nil {
		return err
	}
	if err := p.expect(ctx, w.Ref, paths); err != nil {
		return fmt.Errorf("wait for port %s: %w", w.PortID, err)
	}
	return nil
}

func (p *Plugger) expect(ctx context.Context, r plug.Ref, paths []string) error {
	pod, err := podif.OpenPod(r.Pod, p.node)
	if err != nil {
		return err
	}
	l, err := pod.Marked(r)
	pod.Close()
	if err != nil || l != nil {
		return err
	}
	vpc, _, err := await(ctx, r, paths, p.wait)
	if err != nil {
		return err
	}
	vpc.Close()
	return nil
}

// Plug implements plug.Plugger. If w has no addresses, the interface keeps the addresses, gateways
// and MTU that the agent set. Plug waits briefly for the agent.
func (p *Plugger) Plug(ctx context.Context, w plug.Want) (plug.Done, error) {
	paths, err := p.accept(w)
	if err != nil {
		return plug.Done{}, err
	}
	done, err := p.turns.Take(ctx, w.Short())
	if err != nil {
		return plug.Done{}, err
	}
	defer done()
	return w.Plugged(p.plug(ctx, w, paths))
}

func (p *Plugger) accept(w plug.Want) ([]string, error) {
	if err := w.ValidateFor(plug.Netns); err != nil {
		return nil, err
	}
	return p.candidates(w.VPCNetns)
}

func (p *Plugger) plug(ctx context.Context, w plug.Want, paths []string) (plug.Done, error) {
	pod, err := podif.OpenPod(w.Pod, p.node)
	if err != nil {
		return plug.Done{}, err
	}
	defer pod.Close()
	l, err := pod.Marked(w.Ref)
	if err != nil {
		return plug.Done{}, err
	}
	if l == nil {
		if l, err = p.take(ctx, w, paths, pod); err != nil {
			return plug.Done{}, err
		}
	}
	if l.Attrs().Name != w.Pod.IfName {
		return plug.Done{}, fmt.Errorf("%w: the port is in the pod as %s; a container of the pod may have renamed it", plug.ErrInterfaceExists, l.Attrs().Name)
	}
	i, err := restoreSettings(l.Attrs().Alias, w.Interface)
	if err != nil {
		return plug.Done{}, err
	}
	pod.Sysctls = p.sysctls
	if err := pod.Configure(w.Pod.IfName, i); err != nil {
		return plug.Done{}, err
	}
	if err := failpoint.Hit("plug.nsveth.pod.after"); err != nil {
		return plug.Done{}, err
	}
	return plug.Done{MTU: cmp.Or(i.MTU, l.Attrs().MTU)}, nil
}

// take waits for the agent's link and moves it into the pod.
func (p *Plugger) take(ctx context.Context, w plug.Want, paths []string, pod *podif.Namespace) (netlink.Link, error) {
	if other, err := pod.Link(w.Pod.IfName); err != nil {
		return nil, err
	} else if other != nil {
		return nil, fmt.Errorf("%s in %s: %w", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	vpc, link, err := await(ctx, w.Ref, paths, min(p.wait, briefly))
	if err != nil {
		return nil, err
	}
	defer vpc.Close()
	if err := mayTake(w.Ref, link.Attrs()); err != nil {
		return nil, err
	}
	if id, err := rtnl.Identify(vpc.NS); err != nil || id == p.node {
		return nil, errors.Join(err, fmt.Errorf("%s is the node's own network namespace, not a VPC's: %w", vpc.Path, plug.ErrInvalid))
	}
	mark, err := saveSettings(w, link, vpc)
	if err != nil {
		return nil, err
	}
	if err := vpc.NL.LinkSetAlias(rtnl.LinkRef(link.Attrs().Index), mark); err != nil {
		return nil, fmt.Errorf("set the alias of %s in %s: %w", link.Attrs().Name, vpc.Path, err)
	}
	if err := failpoint.Hit("plug.nsveth.mark.after"); err != nil {
		return nil, err
	}
	err = vpc.Move(link.Attrs().Index, pod, w.Pod.IfName)
	if errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("%s in %s: %w", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	if err != nil {
		return nil, err
	}
	if err := failpoint.Hit("plug.nsveth.move.after"); err != nil {
		return nil, err
	}
	l, err := pod.NL.LinkByName(w.Pod.IfName)
	if err != nil {
		return nil, fmt.Errorf("look up %s in %s: %w", w.Pod.IfName, pod.Path, err)
	}
	return l, nil
}

// mayTake returns nil if a link with the port's name can be the port's, or an error that names its
// owner.
func mayTake(r plug.Ref, l *netlink.LinkAttrs) error {
	other, ok := plug.ParseMark(l.Alias)
	if !ok { // the agent created it and nobody has labelled it
		return nil
	}
	return r.SharesName(other, l.Name)
}

// Await implements plug.Plugger. It returns at once: a port works as soon as the agent's link
// exists.
func (p *Plugger) Await(context.Context, plug.Want) error { return nil }

// Unplug implements plug.Plugger. It removes the link in the pod if the VPC's namespace is gone, or
// if the agent has created a new link there.
func (p *Plugger) Unplug(ctx context.Context, r plug.Ref) error {
	if err := r.ValidateName(); err != nil {
		return err
	}
	return p.turns.During(ctx, r.Short(), func() error { return r.Unplugged(p.unplug(r)) })
}

func (p *Plugger) unplug(r plug.Ref) error {
	vpc, err := p.openVPC(r.VPCNetns)
	if err != nil {
		return err
	}
	if vpc != nil {
		defer vpc.Close()
	}
	pod, err := podif.OpenPod(r.Pod, p.node)
	switch {
	case errors.Is(err, rtnl.ErrNoNetns), errors.Is(err, rtnl.ErrNotNetns):
		return unmark(r, vpc) // the link went with the pod, or never reached it
	case err != nil:
		return err
	}
	defer pod.Close()
	l, err := pod.Marked(r)
	if err != nil {
		return err
	}
	if l != nil {
		if err := p.giveBack(r, l.Attrs().Index, pod, vpc); err != nil {
			return err
		}
	}
	return unmark(r, vpc)
}

func (p *Plugger) giveBack(r plug.Ref, index int, pod, vpc *podif.Namespace) error {
	if err := failpoint.Hit("plug.nsveth.return.before"); err != nil {
		return err
	}
	if err := pod.Forget(index); err != nil {
		return err
	}
	if vpc != nil {
		err := pod.Move(index, vpc, LinkName(r))
		if err == nil {
			return failpoint.Hit("plug.nsveth.return.after")
		}
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if err := pod.NL.LinkDel(rtnl.LinkRef(index)); err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("remove the port's link in %s: %w", pod.Path, err)
	}
	return nil
}

// openVPC opens a VPC's namespace. It returns nil if the namespace is missing or its name does not
// match the prefixes, which may have changed since the ADD: the pod must be deleted in any case.
func (p *Plugger) openVPC(name string) (*podif.Namespace, error) {
	paths, _ := p.candidates(name)
	return openFirst(paths)
}

// unmark clears the alias of the port's link in the VPC's namespace, as the agent created it.
func unmark(r plug.Ref, vpc *podif.Namespace) error {
	if vpc == nil {
		return nil
	}
	l, err := vpc.Marked(r)
	if err != nil || l == nil {
		return err
	}
	if err := vpc.NL.LinkSetAlias(rtnl.LinkRef(l.Attrs().Index), ""); err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("clear the alias of %s in %s: %w", l.Attrs().Name, vpc.Path, err)
	}
	return nil
}

// Check implements plug.Plugger.
func (p *Plugger) Check(_ context.Context, w plug.Want) error {
	if _, err := p.accept(w); err != nil {
		return err
	}
	pod, err := podif.OpenPod(w.Pod, p.node)
	if err != nil {
		return err
	}
	defer pod.Close()
	var found plug.Differences
	l, err := pod.Marked(w.Ref)
	if err != nil {
		return err
	}
	i := w.Interface
	switch {
	case l == nil:
		found.Add("the pod lacks the port's link")
	case l.Attrs().Name != w.Pod.IfName:
		found.Add("the port's link has the name %s in the pod, not %s", l.Attrs().Name, w.Pod.IfName)
	default:
		if i, err = restoreSettings(l.Attrs().Alias, i); err != nil {
			return err
		}
	}
	if err := pod.Check(w.Pod.IfName, i, &found); err != nil {
		return err
	}
	return found.Of(w.PortID)
}

// List implements plug.Plugger for links in VPCs' namespaces. Links in pods are removed with their
// pod, and are found by the record of the pod only.
func (p *Plugger) List(context.Context) ([]plug.Found, error) {
	var list []plug.Found
	err := p.eachVPC(func(vpc *podif.Namespace) error {
		links, err := rtnl.Whole(vpc.NL.LinkList)
		if err != nil {
			return fmt.Errorf("list links in %s: %w", vpc.Path, err)
		}
		for _, l := range links {
			if r, ok := plug.ParseMark(l.Attrs().Alias); ok && r.Kind == plug.Netns {
				r.VPCNetns = filepath.Base(vpc.Path)
				list = append(list, plug.Found{Ref: r, Link: l.Attrs().Name})
			}
		}
		return nil
	})
	slices.SortFunc(list, plug.Found.Compare)
	return list, err
}

// eachVPC calls f for each namespace that is named like a VPC's.
func (p *Plugger) eachVPC(f func(*podif.Namespace) error) error {
	seen := map[string]bool{}
	for _, prefix := range p.prefixes {
		paths, err := filepath.Glob(filepath.Join(p.dir, prefix+"*"))
		if err != nil {
			return fmt.Errorf("list the namespaces of VPCs: %w", err)
		}
		for _, path := range paths {
			if seen[path] {
				continue
			}
			seen[path] = true
			vpc, err := podif.Open(path)
			if err != nil {
				continue // it is being created or removed
			}
			err = f(vpc)
			vpc.Close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error { return p.Unplug(ctx, f.Ref) }

var _ plug.Plugger = (*Plugger)(nil)
