package nicplan

import (
	"cmp"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
)

// Batch is which new ports, of those that wait in the order in which they came, go into the
// next call: the first, and those that are like it, most at a time. A call is all or
// nothing: so one that asks for a certain address, which may be taken, goes alone, and a
// full subnet holds up those of that subnet only. It returns indexes that rise, and looks at
// no more ports than it needs.
func Batch(waiting iter.Seq[vpcport.NewPort], most int) (picked []int) {
	first, i := "", 0
	for p := range waiting {
		key, alone := common(p)
		switch {
		case i == 0:
			if picked, first = append(picked, 0), key; alone {
				return picked
			}
		case key == first && !alone:
			picked = append(picked, i)
		}
		if len(picked) >= most {
			return picked
		}
		i++
	}
	return picked
}

// common is what all ports of a batch have, and alone whether a port is one by itself.
func common(p vpcport.NewPort) (key string, alone bool) {
	parts := []string{p.NetworkID}
	for _, a := range p.Addresses {
		parts = append(parts, a.SubnetID)
		alone = alone || a.IP.IsValid()
	}
	return strings.Join(append(append(parts, ""), slices.Sorted(slices.Values(p.Groups))...), "\x00"), alone
}

// Split is what becomes of a batch that was refused: parts that are asked for next. What
// the error is about goes alone, as far as it can be told; else the batch is halved. One
// port is not split: the refusal is its own.
func Split(batch []int, ports []vpcport.NewPort, err error) [][]int {
	if len(batch) < 2 {
		return nil
	}
	if about := aboutOf(err); about != "" {
		var blamed, others []int
		for _, i := range batch {
			if names(ports[i], about) {
				blamed = append(blamed, i)
			} else {
				others = append(others, i)
			}
		}
		if len(blamed) > 0 && len(others) > 0 {
			return [][]int{others, blamed}
		}
	}
	half := (len(batch) + 1) / 2
	return [][]int{batch[:half], batch[half:]}
}

func aboutOf(err error) string {
	if e, ok := errors.AsType[*vpcport.Error](err); ok {
		return e.About
	}
	return ""
}

// names tells whether a new port asks for something.
func names(p vpcport.NewPort, what string) bool {
	for _, a := range p.Addresses {
		if a.SubnetID == what || a.IP.IsValid() && a.IP.String() == what {
			return true
		}
	}
	return slices.Contains(p.Groups, what) || cmp.Or(p.MAC.String(), "-") == what
}
