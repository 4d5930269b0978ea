package egressclient

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// looseFilter is rp_filter 2 (ip-sysctl): a packet's source must be reachable by any link. The kernel uses the larger
// of the link's setting and that of "all".
const looseFilter = 2

// loosened records that reverse path filtering of the pod's own link was made loose, and its previous value:
// connections from a destination come in by the link although the route back is through a tunnel. It is stored in an
// nftables comment so that it can be reverted. Zero: not changed.
type loosened struct{ link, was int }

const loosenedComment = "; rp_filter of link %d was %d"

func (l loosened) String() string {
	if l.link == 0 {
		return ""
	}
	return fmt.Sprintf(loosenedComment, l.link, l.was)
}

// loosenedIn parses the record from the summary of a filter.
func loosenedIn(summary string) loosened {
	var l loosened
	start, _, _ := strings.Cut(loosenedComment, "%")
	if i := strings.Index(summary, start); i >= 0 {
		if _, err := fmt.Sscanf(summary[i:], loosenedComment, &l.link, &l.was); err != nil {
			return loosened{}
		}
	}
	return l
}

func (s Setup) answersOwnWay() bool {
	return slices.ContainsFunc(s.Egresses, func(e Egress) bool { return e.OriginatingOnly })
}

// loosen returns the change to make: an earlier one, or one if the link filters strictly, by its own setting or that
// of all links.
func (k *kernel) loosen(s Setup, own ownLink, was state) (loosened, error) {
	if !s.answersOwnWay() || !tunnel.AddrOf(s.Addrs, unix.AF_INET).IsValid() {
		return loosened{}, nil
	}
	if was.loosened.link == own.index {
		return was.loosened, nil
	}
	all, err := k.at.GetIPv4Setting(tunnel.AllLinks, tunnel.RPFilter)
	if err != nil {
		return loosened{}, err
	}
	one, err := k.at.GetIPv4Setting(own.index, tunnel.RPFilter)
	if err != nil || max(all, one) != 1 {
		return loosened{}, err
	}
	return loosened{own.index, int(one)}, nil
}

// setLoose makes the change.
func (k *kernel) setLoose(l loosened) error {
	if l.link == 0 {
		return nil
	}
	if v, err := k.at.GetIPv4Setting(l.link, tunnel.RPFilter); err != nil || v == looseFilter {
		return err
	}
	return k.do("set reverse path filtering of the pod's own link", func() error { return k.at.SetIPv4Setting(l.link, tunnel.RPFilter, looseFilter) })
}

// revert undoes the change of an earlier Apply, unless it is still desired.
func (k *kernel) revert(was, stays loosened) error {
	if was.link == 0 || was == stays {
		return nil
	}
	return k.do("set reverse path filtering of the pod's own link back", func() error {
		return ifThere(k.at.SetIPv4Setting(was.link, tunnel.RPFilter, uint32(was.was)))
	})
}
