package foreign_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
)

var now = time.Unix(1700000000, 0)

func allocation(container, addr string, age time.Duration) foreign.Allocation {
	return foreign.Allocation{
		ContainerID: container, IPv4: netip.MustParseAddr(addr), Timestamp: now.Add(-age).UnixNano(),
		Metadata: foreign.Metadata{Namespace: "ns", Pod: container},
	}
}

func route(addr, link, alias string, table int) datapath.ForeignRoute {
	return datapath.ForeignRoute{Addr: netip.MustParseAddr(addr), Link: link, Alias: alias, Table: table}
}

// Routes of the node count, and what the other daemon remembers as long as there is a sign of the pod: its daemon runs, it
// was added just now, or a namespace has the address. What a namespace has alone does not count.
func TestHolders(t *testing.T) {
	for name, c := range map[string]struct {
		routes  []datapath.ForeignRoute
		remembs []foreign.Allocation
		answers bool
		inPods  string // addresses of namespaces
		want    string
	}{
		"nothing":                            {want: "[]"},
		"routes":                             {routes: []datapath.ForeignRoute{route("10.0.0.9", "lxc1", "", 254), route("10.0.0.2", "veth1", "COIL:a:b:eth0", 116), route("10.0.0.3", "calib", "", 254), route("10.0.0.4", "tap0", "", 5)}, want: "[10.0.0.2 (Coil, link veth1, table 116) 10.0.0.3 (Calico, link calib, table 254) 10.0.0.4 (other software, link tap0, table 5) 10.0.0.9 (Cilium, link lxc1, table 254)]"},
		"several routes to an address":       {routes: []datapath.ForeignRoute{route("10.0.0.2", "eni1", "", 254), route("10.0.0.2", "eni2", "", 2)}, want: "[10.0.0.2 (Amazon VPC CNI, link eni1, table 254)]"},
		"remembered, route":                  {routes: []datapath.ForeignRoute{route("10.0.0.2", "eth7", "", 254)}, remembs: []foreign.Allocation{allocation("a", "10.0.0.2", time.Hour)}, want: "[10.0.0.2 (Amazon VPC CNI, pod ns/a)]"},
		"remembered, daemon runs":            {remembs: []foreign.Allocation{allocation("a", "10.0.0.2", time.Hour)}, answers: true, want: "[10.0.0.2 (Amazon VPC CNI, pod ns/a)]"},
		"remembered, added just now":         {remembs: []foreign.Allocation{allocation("a", "10.0.0.2", time.Second)}, want: "[10.0.0.2 (Amazon VPC CNI, pod ns/a)]"},
		"remembered, in a namespace":         {remembs: []foreign.Allocation{allocation("a", "10.0.0.2", time.Hour), allocation("b", "10.0.0.3", time.Hour)}, inPods: "10.0.0.3", want: "[10.0.0.3 (Amazon VPC CNI, pod ns/b)]"},
		"remembered, pod is gone":            {remembs: []foreign.Allocation{allocation("a", "10.0.0.2", time.Hour)}, want: "[]"},
		"remembered, of the future":          {remembs: []foreign.Allocation{allocation("a", "10.0.0.2", -time.Hour)}, want: "[]"},
		"in a namespace alone":               {inPods: "10.0.0.2", want: "[]"},
		"remembered, taken over by Berth":    {remembs: []foreign.Allocation{allocation("adopted", "10.0.0.2", time.Second)}, answers: true, inPods: "10.0.0.2", want: "[]"},
		"remembered twice, by two container": {remembs: []foreign.Allocation{allocation("a", "10.0.0.2", 0), allocation("b", "10.0.0.2", 0)}, want: "[10.0.0.2 (Amazon VPC CNI, pod ns/a)]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := foreign.Holders(foreign.Evidence{
				Now: now, Routes: c.routes, Checkpoint: foreign.Checkpoint{Allocations: c.remembs}, Answers: map[foreign.System]bool{foreign.AmazonVPCCNI: c.answers},
				InPods:  func(a netip.Addr) bool { return strings.Contains(" "+c.inPods+" ", " "+a.String()+" ") },
				Adopted: func(id string) bool { return id == "adopted" },
			})
			if fmt.Sprint(got) != c.want {
				t.Errorf("holders = %v\nwant      %s", got, c.want)
			}
		})
	}
}

func TestSole(t *testing.T) {
	berth := foreign.Config{File: "/c/10-berth.conflist", Plugins: []string{"berth", "portmap"}}
	aws := foreign.Config{File: "/c/10-aws.conflist", Plugins: []string{"aws-cni", "egress-cni", "portmap"}}
	move := "; move the node to one of them: kubectl berth migrate, or remove the other's DaemonSet and configuration file and replace its pods"
	for name, c := range map[string]struct {
		configs  []foreign.Config
		networks []foreign.Network
		want     string
	}{
		"Berth alone":                      {[]foreign.Config{berth}, nil, ""},
		"not installed yet":                {nil, nil, ""},
		"sample files behind Berth's":      {[]foreign.Config{berth, {File: "/c/87-podman.conflist", Plugins: []string{"bridge"}}}, nil, ""},
		"Multus in front":                  {[]foreign.Config{{File: "/c/00-multus.conf", Plugins: []string{"multus-shim"}}, berth}, nil, ""},
		"lo in front, and a damaged file":  {[]foreign.Config{{File: "/c/00-lo.conf", Plugins: []string{"loopback"}}, {File: "/c/01.conf"}, berth}, nil, ""},
		"Berth behind another's plugin":    {[]foreign.Config{{File: "/c/05-cilium.conflist", Plugins: []string{"cilium-cni", "berth"}}}, nil, ""},
		"another in front":                 {[]foreign.Config{aws, berth}, nil, "new pods get their addresses from Amazon VPC CNI: the runtime uses /c/10-aws.conflist, which sorts before 10-berth.conflist"},
		"another alone":                    {[]foreign.Config{{File: "/c/10-x.conf", Plugins: []string{"x"}}}, nil, "new pods get their addresses from plugin x: the runtime uses /c/10-x.conf, there is no configuration of Berth"},
		"another's pods":                   {[]foreign.Config{berth}, []foreign.Network{{foreign.Coil, false, 3}}, "new pods get their addresses from Berth: the runtime uses /c/10-berth.conflist; Coil still holds 3 addresses"},
		"another's daemon":                 {[]foreign.Config{berth}, []foreign.Network{{foreign.AmazonVPCCNI, true, 0}}, "new pods get their addresses from Berth: the runtime uses /c/10-berth.conflist; the daemon of Amazon VPC CNI runs"},
		"two others, before the first pod": {nil, []foreign.Network{{foreign.AmazonVPCCNI, true, 1}, {foreign.Cilium, false, 2}}, "no configuration of a pod network is there; Amazon VPC CNI still holds 1 address and its daemon runs; Cilium still holds 2 addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			healthy, reason, message := foreign.Sole(c.configs, c.networks)
			if want := c.want; want == "" && (!healthy || reason != foreign.ReasonSole || message != "") ||
				want != "" && (healthy || reason != foreign.ReasonTwo || message != want+move) {
				t.Errorf("condition = %v %s %q\nwant %q", healthy, reason, message, c.want)
			}
		})
	}
}

// The checkpoint is read again when it is replaced. A damaged one changes nothing, and a missing one holds nothing.
func TestObserverReadsTheCheckpoint(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, foreign.CheckpointName)
	o := foreign.NewObserver(foreign.Options{
		Checkpoints: dir, Netns: dir, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
		Configs: func() ([]foreign.Config, error) { return nil, nil },
		Answers: func(context.Context) map[foreign.System]bool {
			return map[foreign.System]bool{foreign.AmazonVPCCNI: true}
		},
	})
	for i, c := range []struct{ data, want string }{
		{"", "[]"},
		{checkpoint, "[10.0.0.5 (Amazon VPC CNI, pod default/web-0) 10.0.0.6 (Amazon VPC CNI) 2001:db8::5 (Amazon VPC CNI, pod kube-system/coredns-1)]"},
		{"{", "[10.0.0.5 (Amazon VPC CNI, pod default/web-0) 10.0.0.6 (Amazon VPC CNI) 2001:db8::5 (Amazon VPC CNI, pod kube-system/coredns-1)]"},
		{`{"version":"vpc-cni-ipam/1","allocations":[{"containerID":"x","ipv4":"10.0.0.7"},{}]}`, "[10.0.0.7 (Amazon VPC CNI)]"},
		{`{"version":"vpc-cni-ipam/1","allocations":[]}`, "[]"},
		{checkpoint, "[10.0.0.6 (Amazon VPC CNI) 2001:db8::5 (Amazon VPC CNI, pod kube-system/coredns-1)]"},
		{"", "[]"},
	} {
		if err := os.Remove(file); err != nil && i > 1 {
			t.Fatal(err)
		}
		if c.data != "" {
			if err := os.WriteFile(file+".new", []byte(c.data), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		if changed := o.Changed(); changed != (i > 0) {
			t.Errorf("step %d: Changed() = %v", i, changed)
		}
		var records []attachment.Record
		if i == 5 { // Berth has taken the first pod over
			records = append(records, attachment.Record{Key: attachment.Key{ContainerID: "c1"}})
		}
		seen := o.Observe(t.Context(), nil, records)
		if got := fmt.Sprint(seen.Holders); got != c.want {
			t.Errorf("step %d: holders = %s, want %s", i, got, c.want)
		}
		if o.Changed() {
			t.Errorf("step %d: Changed() after Observe", i)
		}
	}
}
