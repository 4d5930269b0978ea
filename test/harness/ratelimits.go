package harness

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
)

// RateLimits counts the links of a namespace, by type, that have a token bucket of a
// rate (bytes a second).
func RateLimits(t *testing.T, netns string, rate uint64) map[string]int {
	t.Helper()
	found := map[string]int{}
	OK(t, ns.Do(netns, func() error {
		links, err := netlink.LinkList()
		for _, link := range links {
			qdiscs, listErr := netlink.QdiscList(link)
			if listErr != nil {
				err = errors.Join(err, fmt.Errorf("list the qdiscs of %s: %w", link.Attrs().Name, listErr))
			}
			for _, q := range qdiscs {
				if tbf, ok := q.(*netlink.Tbf); ok && tbf.Rate == rate {
					found[link.Type()]++
				}
			}
		}
		return err
	}))
	return found
}
