// Package limits is a table of the network interface and address limits of EC2 instance types.
//
// The numbers come from DescribeInstanceTypes (networkInfo) and are also published in the EC2 User Guide under
// "IP addresses per network interface per instance type". The command aws/limitsgen maintains limits.tsv.
package limits

import (
	_ "embed"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

//go:generate go run ../aws/limitsgen

//go:embed limits.tsv
var table string

// Hypervisors, as the table spells them. EC2 leaves the field empty for bare metal, which has Nitro cards.
const (
	HypervisorXen   = "xen"
	HypervisorNitro = "nitro"
	BareMetal       = "metal"
)

// Limits are the limits of an instance type.
type Limits = cloud.Limits

// Entry is one row of the table.
type Entry struct {
	Type string
	Limits
	Hypervisor   string // HypervisorXen, HypervisorNitro or BareMetal
	NetworkCards int
}

// Lookup returns the limits of an instance type, such as "m5.large"; false if the table lacks it.
func Lookup(instanceType string) (Limits, bool) {
	e, ok := Find(instanceType)
	return e.Limits, ok
}

// Find is Lookup for the whole row.
func Find(instanceType string) (Entry, bool) {
	if instanceType == "" || strings.ContainsAny(instanceType, "\t\n#") {
		return Entry{}, false
	}
	_, rest, ok := strings.Cut(table, "\n"+instanceType+"\t")
	if !ok {
		return Entry{}, false
	}
	line, _, _ := strings.Cut(rest, "\n")
	e, err := ParseRow(instanceType + "\t" + line)
	return e, err == nil
}

// All yields every row, ordered by type.
func All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for line := range strings.Lines(table) {
			if line = strings.TrimSuffix(line, "\n"); line == "" || line[0] == '#' {
				continue
			}
			if e, err := ParseRow(line); err == nil && !yield(e) {
				return
			}
		}
	}
}

// ParseRow parses a tab-separated row: type, ENIs, IPv4 per ENI, IPv6 per ENI, hypervisor, network cards.
func ParseRow(line string) (Entry, error) {
	f := strings.Split(line, "\t")
	if len(f) != 6 {
		return Entry{}, fmt.Errorf("limits row %q: %d fields, expected 6", line, len(f))
	}
	var n [4]int
	for i, s := range []string{f[1], f[2], f[3], f[5]} {
		v, err := strconv.Atoi(s)
		if err != nil {
			return Entry{}, fmt.Errorf("limits row %q: %w", line, err)
		}
		n[i] = v
	}
	switch f[4] {
	case HypervisorXen, HypervisorNitro, BareMetal:
	default:
		return Entry{}, fmt.Errorf("limits row %q: hypervisor %q, expected xen, nitro or metal", line, f[4])
	}
	return Entry{
		Type:         f[0],
		Limits:       Limits{MaxENIs: n[0], IPv4PerENI: n[1], IPv6PerENI: n[2], Prefixes: f[4] != HypervisorXen},
		Hypervisor:   f[4],
		NetworkCards: n[3],
	}, nil
}

// Row is the inverse of ParseRow.
func (e Entry) Row() string {
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%s\t%d", e.Type, e.MaxENIs, e.IPv4PerENI, e.IPv6PerENI, e.Hypervisor, e.NetworkCards)
}

//go:embed trunks.tsv
var trunks string

// Branches returns how many branch ENIs an instance type supports on its trunks; 0 for a type without trunks or
// an unknown one.
func Branches(instanceType string) int {
	if instanceType == "" || strings.ContainsAny(instanceType, "\t\n#") {
		return 0
	}
	_, rest, ok := strings.Cut(trunks, "\n"+instanceType+"\t")
	if !ok {
		return 0
	}
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(line)
	if err != nil {
		return 0
	}
	return n
}
