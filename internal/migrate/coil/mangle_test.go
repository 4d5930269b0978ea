package coil

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/kernel/ns/nstest"
)

// What Coil has in a chain that others use too is removed, and theirs stays.
func TestRulesOfOthersStay(t *testing.T) {
	path := nstest.New(t, nstest.Unique("mangle"))
	in := func(script string) string {
		t.Helper()
		out, err := exec.Command("nsenter", "--net="+path, "bash", "-ec", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return string(out)
	}
	in(`for f in "" 6; do
ip${f}tables-nft -t mangle -A POSTROUTING -p udp --dport 53 -j ACCEPT
ip${f}tables-nft -t mangle -A POSTROUTING -p udp --dport 5555 -j CHECKSUM --checksum-fill
done`)
	pod, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pod.Close() }()
	if err := removeMangle(pod); err != nil {
		t.Fatal(err)
	}
	left := in("iptables-nft -t mangle -S POSTROUTING; ip6tables-nft -t mangle -S POSTROUTING")
	if strings.Contains(left, "5555") || strings.Count(left, "--dport 53 ") != 2 {
		t.Errorf("rules after removeMangle:\n%s\nwant those of port 53 alone", left)
	}
}
