package pool

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/samples"
)

var t0 = time.Unix(1_000_000, 0)

func TestReadBlock(t *testing.T) {
	for _, tc := range []struct{ v4, v6, want string }{
		{"10.2.0.0/31", "fd02::200/127", "10.2.0.0/31 fd02::200/127"},
		{"10.2.0.0/31", "", "10.2.0.0/31"},
		{"", "fd02::200/127", "fd02::200/127"},
		{"", "", "expected at least one"},
		{"10.2.0.1/31", "", "ipv4: \"10.2.0.1/31\""},
		{"fd02::/127", "", "ipv4: \"fd02::/127\""},
		{"", "10.2.0.0/31", "ipv6: \"10.2.0.0/31\""},
		{"10.2.0.0/31", "fd02::200/126", "equally many addresses in both"},
	} {
		b, err := readBlock(&v1alpha1.AddressBlock{IPv4: tc.v4, IPv6: tc.v6})
		got := fmt.Sprint(err)
		if err == nil {
			got = strings.Trim(fmt.Sprint(b.prefixes()), "[]")
		}
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s and %s: %s, want %s", tc.v4, tc.v6, got, tc.want)
		}
	}
}

// blockOf is a block of the pool that its name says.
func blockOf(name, first, second string) blockFacts {
	b := blockFacts{name: name, pool: name[:strings.LastIndexByte(name, '-')], uid: types.UID("uid-" + name), first: netip.MustParsePrefix(first)}
	if second != "" {
		b.second = netip.MustParsePrefix(second)
	}
	return b
}

func uidOf(name string) types.UID { return types.UID("uid-" + name) }

func TestPairs(t *testing.T) {
	for _, tc := range []struct{ addr, from, to, want string }{
		{"10.2.0.1", "10.2.0.0/31", "fd02::200/127", "fd02::201"},
		{"fd02::201", "fd02::200/127", "10.2.0.0/31", "10.2.0.1"},
		{"10.2.0.37", "10.2.0.32/27", "fd02::220/123", "fd02::225"},
		{"10.3.255.254", "10.3.0.0/16", "fd03:1::/112", "fd03:1::fffe"},
		{"10.0.0.1", "10.0.0.1/32", "fd00::1/128", "fd00::1"},
		{"10.2.3.255", "10.2.2.0/23", "fd02::1:fe00/119", "fd02::1:ffff"},
	} {
		got := at(netip.MustParseAddr(tc.addr), netip.MustParsePrefix(tc.from), netip.MustParsePrefix(tc.to))
		check.Equal(t, got.String(), tc.want, "%s of %s stands at %s in %s", tc.addr, tc.from, got, tc.to)
	}
}

func TestDemand(t *testing.T) {
	for _, tc := range []struct {
		name   string
		have   supply
		target int
		blocks int
	}{
		{"nothing here, nobody waits", supply{size: 32}, 0, 0},
		{"a pool that is kept warm", supply{size: 32, warm: true}, 8, 1},
		{"enough is free", supply{size: 32, warm: true, free: 8}, 8, 0},
		{"a block before the last one is full", supply{size: 32, warm: true, free: 7}, 8, 1},
		{"two addresses: a quarter is none", supply{size: 2, warm: true, free: 0}, 0, 0},
		{"single addresses are asked for one by one", supply{size: 1, warm: true, waiting: 3}, 0, 3},
		{"a hundred pods at once", supply{size: 32, warm: true, waiting: 100}, 8, 4},
		{"a hundred pods at once, single addresses", supply{size: 1, warm: true, waiting: 100}, 0, 8},
		{"those who wait get what is on its way", supply{size: 4, warm: true, waiting: 3, free: 4}, 1, 0},
		{"a huge block", supply{size: 1 << 30, warm: true, free: 1 << 29}, 1 << 28, 0},
	} {
		check.Equal(t, tc.have.target(25), tc.target, "%s: target", tc.name)
		check.Equal(t, tc.have.blocks(25), tc.blocks, "%s: blocks", tc.name)
	}
}

func TestBlocksToReturn(t *testing.T) {
	const delay = time.Minute
	long, longer, now := t0.Add(-2*delay), t0.Add(-3*delay), t0
	for _, tc := range []struct {
		name  string
		have  supply
		empty []idle
		want  string
		soon  time.Time
	}{
		{"the last block of a pool that is kept warm", supply{size: 32, warm: true, free: 32}, []idle{{"a", 32, long}}, "", time.Time{}},
		{"the last block of one that nobody uses", supply{size: 32, free: 32}, []idle{{"a", 32, long}}, "a", time.Time{}},
		{"the longest empty", supply{size: 32, warm: true, free: 64}, []idle{{"a", 32, long}, {"b", 32, longer}}, "b", time.Time{}},
		{"all but what keeps it warm", supply{size: 4, warm: true, free: 12}, []idle{{"a", 4, long}, {"b", 4, long}, {"c", 4, longer}}, "c a", time.Time{}},
		{"not at once", supply{size: 32, free: 32}, []idle{{"a", 32, now.Add(-time.Second)}}, "", now.Add(delay - time.Second)},
		{"the rest is too full", supply{size: 32, warm: true, free: 32 + 7}, []idle{{"a", 32, long}}, "", time.Time{}},
		{"pods wait", supply{size: 1, warm: true, free: 1, waiting: 1}, []idle{{"a", 1, long}}, "", time.Time{}},
	} {
		names, soon := toReturn(tc.have, 25, tc.empty, delay, now)
		if got := strings.Join(names, " "); got != tc.want || !soon.Equal(tc.soon) {
			t.Errorf("%s: %q, next %v; want %q, %v", tc.name, got, soon, tc.want, tc.soon)
		}
	}
}

func TestBlocksFile(t *testing.T) {
	f := file{t.TempDir()}
	if _, _, ok, err := f.load(); ok || err != nil {
		t.Errorf("without a file: %v, %v", ok, err)
	}
	want := []blockFacts{
		blockOf("default-0", "10.0.0.0/27", "fd00::/123"), blockOf("v6-1", "fd00::1:0/112", ""), blockOf("one-7", "10.1.0.7/32", ""),
	}
	want[2].draining = true
	want[0].withheld = []withheldRange{{netip.MustParsePrefix("10.0.0.7/32"), "Node node-2"}}
	check.OK(t, f.save("node-1", want))
	node, got, ok, err := f.load()
	if err != nil || !ok || node != "node-1" {
		t.Fatalf("node %q, %v, %v", node, ok, err)
	}
	check.Same(t, got, want, cmp.AllowUnexported(blockFacts{}, withheldRange{}), cmp.Comparer(func(x, y netip.Prefix) bool { return x == y }))
}

// Blocks that every release stored are read, and what is written has all that each
// release reads.
func TestStoredBlocks(t *testing.T) {
	f := file{t.TempDir()}
	samples.Check(t, samples.Format{Files: blocksFile, Type: reflect.TypeFor[fileContent](), Again: func(data []byte) ([]byte, error) {
		path := filepath.Join(f.dir, blocksFile)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return nil, err
		}
		node, blocks, _, err := f.load()
		if err == nil {
			err = f.save(node, blocks)
		}
		if err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}})
}
