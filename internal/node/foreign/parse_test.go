package foreign_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/node/foreign"
)

// The format is that of ipamd's datastore; the link's name is what its plugin makes of namespace and pod.
const checkpoint = `{"version":"vpc-cni-ipam/1","allocations":[
 {"networkName":"aws-cni","containerID":"c1","ifName":"eth0","ipv4":"10.0.0.5","allocationTimestamp":1700000000000000000,
  "metadata":{"k8sPodNamespace":"default","k8sPodName":"web-0"}},
 {"networkName":"_migrated-from-cri","containerID":"c2","ifName":"unknown","ipv4":"10.0.0.6","allocationTimestamp":0,"metadata":{}},
 {"networkName":"aws-cni","containerID":"c3","ifName":"eth0","ipv6":"2001:db8::5","allocationTimestamp":1700000000000000001,
  "metadata":{"k8sPodNamespace":"kube-system","k8sPodName":"coredns-1","interfacesCount":1}}]}`

func TestCheckpoint(t *testing.T) {
	c, err := foreign.ParseCheckpoint([]byte(checkpoint))
	if err != nil || len(c.Allocations) != 3 {
		t.Fatalf("got %+v, %v; expected three allocations", c, err)
	}
	first, second, third := c.Allocations[0], c.Allocations[1], c.Allocations[2]
	if first.Pod() != "default/web-0" || first.HostLink() != "eni0d7763386da" || first.At().Unix() != 1700000000 {
		t.Errorf("got %s, %s, %s", first.Pod(), first.HostLink(), first.At())
	}
	if second.Pod() != "" || second.HostLink() != "" {
		t.Errorf("got pod %q and link %q for an entry without a pod", second.Pod(), second.HostLink())
	}
	if got := third.Addrs(); len(got) != 1 || got[0] != netip.MustParseAddr("2001:db8::5") {
		t.Errorf("got addresses %v", got)
	}
	// What is written is what was read.
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var was, is any
	if err := json.Unmarshal([]byte(checkpoint), &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &is); err != nil || !reflect.DeepEqual(was, is) {
		t.Errorf("written again it is\n%s, %v; expected\n%s", data, err, checkpoint)
	}
}

func TestInvalidCheckpoint(t *testing.T) {
	entry := func(e string) string { return `{"version":"vpc-cni-ipam/1","allocations":[` + e + `]}` }
	good := `{"containerID":"c1","ifName":"eth0","ipv4":"10.0.0.5"}`
	for name, c := range map[string]struct {
		data, expected string
		entries        int
	}{
		"not JSON":          {"{", "unexpected end", 0},
		"another version":   {`{"version":"vpc-cni-ipam/2"}`, `version is "vpc-cni-ipam/2"`, 0},
		"no version":        {`{}`, `version is ""`, 0},
		"no container":      {entry(`{"ipv4":"10.0.0.5"},` + good), "allocations[0]: containerID is empty", 1},
		"no address":        {entry(good + `,{"containerID":"c2"}`), "allocations[1]: neither", 1},
		"no such address":   {entry(`{"containerID":"c2","ipv4":"10.0.0"},` + good), "allocations[0]", 1},
		"IPv6 as ipv4":      {entry(`{"containerID":"c2","ipv4":"::1"},` + good), "ipv4 is ::1", 1},
		"mapped IPv4":       {entry(`{"containerID":"c2","ipv6":"::ffff:10.0.0.5"},` + good), "ipv6 is ::ffff", 1},
		"zone":              {entry(`{"containerID":"c2","ipv6":"fe80::1%eth0"},` + good), "ipv6 is fe80", 1},
		"an entry of text":  {entry(`"x",` + good), "allocations[0]", 1},
		"many that are bad": {entry(strings.Repeat(`{},`, 1000) + good), "1000 entries", 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := foreign.ParseCheckpoint([]byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.expected) || len(err.Error()) > 600 {
				t.Errorf("got error %v, expected one with %q", err, c.expected)
			}
			if len(got.Allocations) != c.entries {
				t.Errorf("got %d entries, expected %d", len(got.Allocations), c.entries)
			}
		})
	}
}

func TestCoilPods(t *testing.T) {
	addr := netip.MustParseAddr
	links := []foreign.Link{
		{2, "eth0", ""},
		{9, "vethaf929f2c", "COIL:default:ab12:eth0"},
		{7, "veth5b6c70fb", "COIL:v6only:cd34:net1"},
		{8, "veth00000001", "COIL::uid-1:eth0"}, // chained, without addresses
		{10, "veth00000002", "COIL:default:ab12"},
		{11, "veth00000003", "coil:default:ab12:eth0"},
	}
	routes := []foreign.Route{
		{addr("10.72.0.1"), 116, 30, 9}, {addr("2001:db8::1"), 116, 30, 9}, {addr("2001:db8::2"), 116, 30, 7},
		{addr("10.72.0.9"), 254, 3, 9}, {addr("10.72.0.8"), 116, 30, 99},
	}
	expected := []foreign.CoilPod{
		{foreign.CoilAlias{"", "uid-1", "eth0"}, links[3], nil},
		{foreign.CoilAlias{"v6only", "cd34", "net1"}, links[2], []netip.Addr{addr("2001:db8::2")}},
		{foreign.CoilAlias{"default", "ab12", "eth0"}, links[1], []netip.Addr{addr("10.72.0.1"), addr("2001:db8::1")}},
	}
	got := foreign.CoilPods(links, routes, foreign.CoilPodTable)
	if !reflect.DeepEqual(got, expected) {
		t.Errorf("got %+v, expected %+v", got, expected)
	}
	for _, p := range got {
		if again, ok := foreign.ParseCoilAlias(p.CoilAlias.String()); !ok || again != p.CoilAlias {
			t.Errorf("%s is read as %+v", p.CoilAlias, again)
		}
	}
}

// ipamd is kept from starting only where it has left no checkpoint, which would be lost.
func TestFence(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "aws-node")
	for i, want := range []bool{true, false} {
		if fenced, err := foreign.Fence(dir); err != nil || fenced != want {
			t.Errorf("Fence, call %d = %v, %v, want %v", i+1, fenced, err, want)
		}
	}
	file := filepath.Join(dir, foreign.CheckpointName)
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), foreign.CheckpointMoved) {
		t.Errorf("checkpoint = %s, %v", data, err)
	}
	if err := os.WriteFile(file, []byte(checkpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	if fenced, err := foreign.Fence(dir); err != nil || fenced {
		t.Errorf("Fence beside a checkpoint = %v, %v", fenced, err)
	}
	if data, _ := os.ReadFile(file); string(data) != checkpoint {
		t.Error("Fence replaced a checkpoint")
	}
}
