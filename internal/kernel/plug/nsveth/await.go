package nsveth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// again is how often a VPC's namespace is looked for, and whether it is still the one that was
// found. Links in it are told by the kernel.
const again = 50 * time.Millisecond

// await waits until the agent has put the port's link into the VPC's namespace, for so long at
// most. Errors: plug.ErrNotReady with what is missing.
func await(ctx context.Context, r plug.Ref, paths []string, most time.Duration) (*podif.Namespace, netlink.Link, error) {
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	began := time.Now()
	for {
		vpc, link, err := awaitIn(bounded, r, paths)
		if err != nil || link != nil {
			return vpc, link, err
		}
		if bounded.Err() != nil {
			what := fmt.Sprintf("no %s in %s", LinkName(r), paths[0])
			if vpc == nil {
				what = "no network namespace " + strings.Join(paths, " or ")
			} else {
				vpc.Close()
			}
			return nil, nil, fmt.Errorf("%w: %s after %s: the agent of the VPC on this node has not made the port's link", plug.ErrNotReady,
				what, time.Since(began).Round(time.Millisecond))
		}
		if vpc != nil {
			vpc.Close()
		}
	}
}

// awaitIn waits in the namespace that is there now. It gives up without an error when there is
// none, when another takes its place, or when ctx ends.
func awaitIn(ctx context.Context, r plug.Ref, paths []string) (*podif.Namespace, netlink.Link, error) {
	vpc, err := openFirst(paths)
	if err != nil {
		return nil, nil, err
	}
	if vpc == nil {
		pause(ctx)
		return nil, nil, nil
	}
	events, err := nl.SubscribeAt(vpc.NS, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		vpc.Close()
		return nil, nil, fmt.Errorf("watch links in %s: %w", vpc.Path, err)
	}
	defer events.Close()
	timeout := unix.NsecToTimeval(int64(again))
	if err := events.SetReceiveTimeout(&timeout); err != nil {
		vpc.Close()
		return nil, nil, fmt.Errorf("watch links in %s: %w", vpc.Path, err)
	}
	for {
		link, err := vpc.Link(LinkName(r)) // after the subscription, so nothing is missed
		if err != nil {
			vpc.Close()
			return nil, nil, err
		}
		if link != nil || ctx.Err() != nil || !stands(vpc) {
			return vpc, link, nil
		}
		// An event, lost events (ENOBUFS) and the timeout (EAGAIN) all mean: look again.
		_, _, _ = events.Receive()
	}
}

// openFirst opens the first namespace that is there; nil: none is.
func openFirst(paths []string) (*podif.Namespace, error) {
	for _, path := range paths {
		vpc, err := podif.Open(path)
		switch {
		case err == nil:
			return vpc, nil
		case !errors.Is(err, rtnl.ErrNoNetns) && !errors.Is(err, rtnl.ErrNotNetns): // or it is not mounted yet
			return nil, err
		}
	}
	return nil, nil
}

// stands tells whether a namespace is still what is at its path.
func stands(s *podif.Namespace) bool {
	now, err := rtnl.InspectNetns(s.Path)
	if err != nil {
		return false
	}
	id, err := rtnl.Identify(s.NS)
	return err == nil && id == now
}

func pause(ctx context.Context) {
	wait := time.NewTimer(again)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}
