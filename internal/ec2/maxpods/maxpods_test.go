package maxpods

import (
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/test/harness/check"
)

// Each ENI but the primary one takes an address of the subnet for itself.
func TestFreeAddresses(t *testing.T) {
	for name, tc := range map[string]struct {
		instanceType string
		o            Options
		want         int
	}{
		"primary ENI":                 {"m5.large", Options{Free: 4}, 4},
		"second ENI":                  {"m5.large", Options{Free: 11}, 10},
		"second ENI alone":            {"m5.large", Options{Free: 4, First: 1}, 3},
		"a trunk":                     {"m5.large", Options{Free: 4, Trunk: true}, 3},
		"prefixes":                    {"m5.large", Options{Free: 40, Prefixes: true}, 32},
		"no address":                  {"m5.large", Options{First: 1}, 0},
		"dual stack without prefixes": {"t2.micro", Options{Free: 1, Families: ipfamily.Dual}, 0},
	} {
		tc.o.HasFree = true
		if tc.o.Families == "" {
			tc.o.Families = ipfamily.OnlyIPv4
		}
		c := check.Must(Of(tc.instanceType, tc.o))(t)
		check.Equal(t, c.MaxPods, tc.want+HostPods, "%s: pods", name)
	}
}
