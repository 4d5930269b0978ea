package nicplan

import (
	"cmp"
	"slices"

	"github.com/berthnet/berth/internal/vpcport"
)

// Choose is which of the ports that were made for a NIC is its, and the IDs of the
// others: the one that is recorded; else the oldest, and of those of one moment the one
// whose ID sorts first. Every operator chooses the same.
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
