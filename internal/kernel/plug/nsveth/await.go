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

// pollInterval is the polling interval for a VPC's namespace, and for its replacement. Changes of links in
// it arrive as netlink events.
const pollInterval = 50 * time.Millisecond

// await waits up to most until the agent has put the port's link into the VPC's namespace. Errors: plug.ErrNotReady,
// which says what is missing.
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
			return nil, nil, fmt.Errorf("%w: %s after %s: the agent of the VPC on this node has not created the port's link", plug.ErrNotReady,
				what, time.Since(began).Round(time.Millisecond))
		}
		if vpc != nil {
			vpc.Close()
		}
	}
}

// awaitIn waits in the current namespace. It returns without a link and without an error if there
// is none, if the namespace is replaced, or if ctx ends.
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
	timeout := unix.NsecToTimeval(int64(pollInterval))
	if err := events.SetReceiveTimeout(&timeout); err != nil {
		vpc.Close()
		return nil, nil, fmt.Errorf("watch links in %s: %w", vpc.Path, err)
	}
	for {
		link, err := vpc.Link(LinkName(r)) // after the subscription, so that no event is missed
		if err != nil {
			vpc.Close()
			return nil, nil, err
		}
		if link != nil || ctx.Err() != nil || !isCurrent(vpc) {
			return vpc, link, nil
		}
		// Look again after an event, after lost events (ENOBUFS) and after the timeout (EAGAIN).
		_, _, _ = events.Receive()
	}
}

// openFirst opens the first namespace that exists, or returns nil.
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

// isCurrent reports whether a namespace is still the one at its path.
func isCurrent(s *podif.Namespace) bool {
	now, err := rtnl.InspectNetns(s.Path)
	if err != nil {
		return false
	}
	id, err := rtnl.Identify(s.NS)
	return err == nil && id == now
}

func pause(ctx context.Context) {
	wait := time.NewTimer(pollInterval)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}
