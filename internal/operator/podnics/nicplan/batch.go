package nicplan

import (
	"cmp"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
)

// Batch returns which of the waiting new ports, in the order in which they came, go into the next
// call: the first and those like it, up to most of them. A call succeeds or fails as a whole: a
// port with a certain address, which may be taken, goes alone, and a full subnet delays only ports
// of that subnet. The indexes rise. Batch reads no more of waiting than it needs.
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

// common returns what all ports of a batch share, and whether a port goes alone.
func common(p vpcport.NewPort) (key string, alone bool) {
	parts := []string{p.NetworkID}
	for _, a := range p.Addresses {
		parts = append(parts, a.SubnetID)
		alone = alone || a.IP.IsValid()
	}
	return strings.Join(append(append(parts, ""), slices.Sorted(slices.Values(p.Groups))...), "\x00"), alone
}

// Split returns the parts in which a refused batch is asked for again: the ports that the error is
// about apart from the others, or two halves if it names none. A single port is not split, since the
// refusal is about it.
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

// names reports whether a new port asks for what an error is about.
func names(p vpcport.NewPort, what string) bool {
	for _, a := range p.Addresses {
		if a.SubnetID == what || a.IP.IsValid() && a.IP.String() == what {
			return true
		}
	}
	return slices.Contains(p.Groups, what) || cmp.Or(p.MAC.String(), "-") == what
}

// Choose returns which of the ports that were made for a NIC it keeps, and the IDs of the others. It
// keeps the recorded one, else the oldest, else the one whose ID sorts first. Every operator chooses
// the same.
func Choose(ports []vpcport.Port, recorded string) (*vpcport.Port, []string) {
	if len(ports) == 0 {
		return nil, nil
	}
	sorted := slices.SortedFunc(slices.Values(ports), func(a, b vpcport.Port) int {
		return cmp.Or(boolCompare(b.ID == recorded, a.ID == recorded), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	var extra []string
	for _, p := range sorted[1:] {
		extra = append(extra, p.ID)
	}
	return &sorted[0], extra
}

// boolCompare orders false before true.
func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
