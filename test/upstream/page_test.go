package main

import (
	"os"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
)

func TestTableOfResults(t *testing.T) {
	all := []results{
		{Mode: "node", Families: ipfamily.OnlyIPv6, Kubernetes: "v1.37.1", Specs: []result{
			{Name: "a", Group: "conformance", Outcome: passed},
			{Name: "b <x|y>", Group: "network", Outcome: failed, Why: "late"},
			{Name: "c", Group: "network", Outcome: notApplicable, Why: "no cloud"},
		}},
		{Mode: "pool", Families: ipfamily.Dual, Kubernetes: "v1.37.1", Specs: []result{
			{Name: "b <x|y>", Group: "network", Outcome: failed, Why: "late"},
			{Name: "d", Group: "network", Outcome: notApplicable, Why: "no cloud"},
		}},
	}
	got := table(all)
	for _, want := range []string{
		"| `[sig-network]` `[Conformance]` | node | ipv6 | v1.37.1 | 1 | 0 | 0 | 0 |\n",
		"| all other `[sig-network]` | node | ipv6 | v1.37.1 | 0 | 1 | 0 | 1 |\n",
		"| b &lt;x\\|y> | node (ipv6), pool (dual) | late |\n",
		"| no cloud | c; d |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("table lacks %q:\n%s", want, got)
		}
	}
}

// The page has the latest recorded results.
func TestPageHasTheResults(t *testing.T) {
	const file = "../../docs/reference/conformance.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all, err := readResults("results")
	if err != nil {
		t.Fatal(err)
	}
	want, err := replaceTable(string(page), table(all))
	if err != nil {
		t.Fatal(err)
	}
	if want != string(page) {
		t.Errorf("%s differs from the directory results; run `make conformance-page` to update it", file)
	}
}

func TestBadFlagsAreNamed(t *testing.T) {
	for flags, want := range map[string]string{
		"-groups slow":                 `-groups has "slow"`,
		"-focus (":                     "-focus: error parsing regexp",
		"-page x.md":                   "-page needs -record",
		"":                             "-e2e and -ginkgo are needed",
		"-e2e x -ginkgo y -mode ports": `-mode is "ports", expected one of node, operator, pool, port`,
		"-e2e x -ginkgo y -mode pool -ip-families ipv6": "-ip-families is ipv6, and pods in mode pool have dual",
		"-ip-families IPv6":                             `-ip-families: "IPv6": expected ipv4, ipv6 or dual`,
		"-e2e x -ginkgo y -procs 0":                     "-procs is 0",
		"-e2e x -ginkgo y":                              "-images is needed to start a cluster",
		"-e2e x -ginkgo y -nosuchthing2":                "not defined: -nosuchthing2",
	} {
		if _, err := parse(strings.Fields(flags), &strings.Builder{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("flags %q: error = %v, want one containing %q", flags, err, want)
		}
	}
}
