package egressclient

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Check compares the pod's namespace at a path with s, and returns an error that names all differences. Errors:
// ErrNoFoU; ErrNoNetns; rtnl.ErrNotNetns; those of Validate.
func Check(ctx context.Context, netnsPath string, s Setup) error {
	found, err := check(ctx, netnsPath, s)
	if err != nil {
		return fmt.Errorf("check egress in %s: %w", netnsPath, err)
	}
	if len(found) > 0 {
		return fmt.Errorf("egress in %s: %s", netnsPath, strings.Join(found, "; "))
	}
	return nil
}

func check(ctx context.Context, netnsPath string, s Setup) ([]string, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k, err := open(netnsPath)
	if err != nil {
		return nil, err
	}
	defer k.close()
	was, err := k.look()
	if err != nil {
		return nil, err
	}
	coil, err := readFormer(k, s)
	if err != nil {
		return nil, err
	}
	if len(s.Egresses) == 0 {
		if len(coil.aside) > 0 {
			return []string{"the pod uses no Egress, and Coil's routes are set aside"}, nil
		}
		if !was.fresh() {
			return []string{"the pod has tunnels although it uses no Egress"}, nil
		}
		return nil, nil
	}
	link, further, err := k.links(s)
	if err != nil {
		return nil, err
	}
	f, err := newFilter(s, was.loosened)
	if err != nil {
		return nil, err
	}
	found, err := k.differences(was, newPlan(s, link.mtu, further), f)
	for _, r := range coil.inForce {
		found = append(found, "Coil's "+nameOf(r)+" precedes Berth's")
	}
	return found, err
}

func (k *kernel) differences(was state, p plan, f filter) ([]string, error) {
	var found []string
	note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for _, t := range p.tunnels {
		list, err := tunnel.Check(k.at.NL, t)
		if err != nil {
			return nil, err
		}
		found = append(found, list...)
	}
	if l := was.links[unix.AF_INET]; l != nil && p.has(unix.AF_INET) {
		if !was.loose {
			note("%s has no loose reverse path filtering", l.Attrs().Name)
		}
		if !was.numbered {
			note("%s lacks the pod's address", l.Attrs().Name)
		}
	}
	devices := map[int]int{}
	for family, l := range was.links {
		devices[family] = l.Attrs().Index
	}
	routes := k.routeKind().Compare(p.desired(devices), was.routes)
	rules := k.ruleKind().Compare(p.rules, was.rules)
	for _, r := range routes.Missing {
		note("the pod lacks the %s", r)
	}
	for _, r := range routes.Changed {
		if r.Observed.route != r.Desired.route {
			note("the pod has the %s, not the %s", r.Observed, r.Desired)
		} else {
			note("the %s does not use link %s", r.Desired, tunnel.LinkOf(r.Desired.family()))
		}
	}
	for _, r := range routes.Extra {
		note("the pod has the %s, which none of its Egresses needs", r)
	}
	for _, r := range rules.Missing {
		note("the pod lacks the %s", r)
	}
	for _, r := range rules.Extra {
		note("the pod has the %s, which none of its Egresses needs", r)
	}
	switch was.filter {
	case f.summary():
	case "":
		note("the pod lacks nftables table %s", tunnel.Table)
	default:
		note("nftables table %s has the wrong content", tunnel.Table)
	}
	return found, nil
}
