package nicplan_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

func in(subnet, ip string, groups ...string) vpcport.NewPort {
	a := vpcport.NewAddress{SubnetID: subnet}
	if ip != "" {
		a.IP = netip.MustParseAddr(ip)
	}
	return vpcport.NewPort{NetworkID: "n", Addresses: []vpcport.NewAddress{a}, Groups: groups}
}

// batches returns the calls by which all of these ports are created.
func batches(ports []vpcport.NewPort, most int) (all [][]int) {
	left := make([]int, len(ports))
	for i := range ports {
		left[i] = i
	}
	for len(left) > 0 {
		picked := nicplan.Batch(func(yield func(vpcport.NewPort) bool) {
			for _, i := range left {
				if !yield(ports[i]) {
					return
				}
			}
		}, most)
		var batch []int
		for _, at := range picked {
			batch = append(batch, left[at])
		}
		all = append(all, batch)
		left = slices.DeleteFunc(left, func(i int) bool { return slices.Contains(batch, i) })
	}
	return all
}

func TestBatch(t *testing.T) {
	other := in("a", "")
	other.NetworkID = "m"
	for _, tc := range []struct {
		name  string
		ports []vpcport.NewPort
		most  int
		want  [][]int
	}{
		{"none", nil, 4, nil},
		{"alike", []vpcport.NewPort{in("a", ""), in("a", ""), in("a", "")}, 4, [][]int{{0, 1, 2}}},
		{"more than fit", []vpcport.NewPort{in("a", ""), in("a", ""), in("a", ""), in("a", ""), in("a", "")}, 2, [][]int{{0, 1}, {2, 3}, {4}}},
		{"different subnets", []vpcport.NewPort{in("a", ""), in("b", ""), in("a", ""), in("b", "")}, 4, [][]int{{0, 2}, {1, 3}}},
		{"different networks", []vpcport.NewPort{in("a", ""), other, in("a", "")}, 4, [][]int{{0, 2}, {1}}},
		{"different groups", []vpcport.NewPort{in("a", "", "g", "h"), in("a", "", "h", "g"), in("a", "", "g")}, 4, [][]int{{0, 1}, {2}}},
		{"subnet and group of the same name", []vpcport.NewPort{in("a", "", "b"), {NetworkID: "n", Addresses: []vpcport.NewAddress{{SubnetID: "a"}, {SubnetID: "b"}}}}, 4, [][]int{{0}, {1}}},
		{"fixed addresses go alone", []vpcport.NewPort{in("a", "10.0.0.5"), in("a", ""), in("a", "10.0.0.6"), in("a", "")}, 4, [][]int{{0}, {1, 3}, {2}}},
		{"one at a time", []vpcport.NewPort{in("a", ""), in("a", "")}, 1, [][]int{{0}, {1}}},
	} {
		if d := cmp.Diff(tc.want, batches(tc.ports, tc.most)); d != "" {
			t.Errorf("%s: batches (-want +got):\n%s", tc.name, d)
		}
	}
}

func TestSplit(t *testing.T) {
	ports := []vpcport.NewPort{in("a", ""), in("a", "", "g"), in("b", ""), in("b", "10.0.0.5"), in("b", "")}
	ports[4].MAC = aMAC
	about := func(what string) error { return &vpcport.Error{Class: vpcport.ReferenceGone, About: what} }
	for _, tc := range []struct {
		name  string
		batch []int
		err   error
		want  [][]int
	}{
		{"one", []int{0}, about("a"), nil},
		{"error about a subnet", []int{0, 2, 3}, about("a"), [][]int{{2, 3}, {0}}},
		{"error about a group", []int{0, 1, 2}, about("g"), [][]int{{0, 2}, {1}}},
		{"error about an address", []int{2, 3, 4}, about("10.0.0.5"), [][]int{{2, 4}, {3}}},
		{"error about a MAC address", []int{0, 4}, about(aMAC.String()), [][]int{{0}, {4}}},
		{"error about all ports", []int{2, 3, 4}, about("b"), [][]int{{2, 3}, {4}}},
		{"error about none of them", []int{2, 3, 4}, about("z"), [][]int{{2, 3}, {4}}},
		{"error without a subject", []int{0, 1, 2, 3}, errors.New("no"), [][]int{{0, 1}, {2, 3}}},
	} {
		if d := cmp.Diff(tc.want, nicplan.Split(tc.batch, ports, tc.err)); d != "" {
			t.Errorf("%s: Split() (-want +got):\n%s", tc.name, d)
		}
	}
}
