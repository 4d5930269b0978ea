package egressclient

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// Check tells how the pod's namespace at a path differs from s, in words; nil if it does not. Errors:
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
	if len(s.Egresses) == 0 {
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
	return k.differences(was, newPlan(s, link.mtu, further), f)
}

func (k *kernel) differences(was state, p plan, f filter) ([]string, error) {
	var found []string
	note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for _, t := range p.tunnels {
		list, err := tunnel.Check(k.nl, t)
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
	found = append(found, was.routesDiffer(p.routes)...)
	found = append(found, was.rulesDiffer(p.rules)...)
	switch was.filter {
	case f.summary():
	case "":
		note("the pod lacks nftables table %s", tunnel.Table)
	default:
		note("nftables table %s is not as it should be", tunnel.Table)
	}
	return found, nil
}

func (s state) routesDiffer(wanted []route) []string {
	var found []string
	note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	keep := map[place]bool{}
	for _, r := range wanted {
		keep[r.place] = true
		h, ok := s.routes[r.place]
		switch l := s.links[r.family()]; {
		case !ok:
			note("the pod lacks the %s", r)
		case h.route != r:
			note("the pod has the %s, not the %s", h, r)
		case r.via.IsValid() && (l == nil || h.link != l.Attrs().Index):
			note("the %s leads by another link than %s", r, linkOf(r.family()))
		}
	}
	for at, h := range s.routes {
		if !keep[at] {
			note("the pod has the %s, which no Egress of it asks for", h)
		}
	}
	return found
}

func (s state) rulesDiffer(wanted []rule) []string {
	var found []string
	note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	keep := map[rule]bool{}
	for _, r := range wanted {
		keep[r] = true
		if !s.rules[r] {
			note("the pod lacks the %s", r)
		}
	}
	for r := range s.rules {
		if !keep[r] {
			note("the pod has the %s, which no Egress of it asks for", r)
		}
	}
	return found
}
