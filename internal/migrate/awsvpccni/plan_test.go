package awsvpccni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/test/harness/check"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func host(s string) netip.Prefix { return netip.PrefixFrom(addr(s), addr(s).BitLen()) }

// node1 is a node with a pod of each kind: on both ENIs, of a prefix, of IPv6, gone, and with a branch.
func node1() survey {
	ns := func(inode uint64) attachment.Netns {
		return attachment.Netns{Path: "/run/netns/x", Dev: 4, Inode: inode}
	}
	named := func(name string, ip string) foreign.Allocation {
		a := foreign.Allocation{NetworkName: "aws-cni", ContainerID: "c-" + name, IfName: "eth0", Timestamp: 5, Metadata: foreign.Metadata{Namespace: "shop", Pod: name, Interfaces: 1}}
		if ip := addr(ip); ip.Is4() {
			a.IPv4 = ip
		} else {
			a.IPv6 = ip
		}
		return a
	}
	linkOf := func(name string, index int, ip string) link {
		return link{name: "eni" + linkSuffix("shop", name), index: index, netns: ns(uint64(index)), peer: "eth0", addresses: []netip.Addr{addr(ip)}}
	}
	return survey{
		instance: cloud.Identity{InstanceID: "i-1", InstanceType: "m5.large"}, kernel: version{6, 2},
		configured: configured{network: "aws-cni", formerName: "aws-cni", prefix: "eni"},
		enis: []cloud.AttachedENI{
			{ID: "eni-0", Held: []netip.Prefix{host("10.0.0.10"), netip.MustParsePrefix("2001:db8::/80")}},
			{ID: "eni-1", DeviceIndex: 1, Held: []netip.Prefix{host("10.0.1.10"), netip.MustParsePrefix("10.0.1.32/28")}},
		},
		saved: saved{checkpoint: foreign.Checkpoint{Allocations: []foreign.Allocation{
			named("first", "10.0.0.10"), named("second", "10.0.1.10"), named("prefix", "10.0.1.40"), named("six", "2001:db8::5"), named("gone", "10.0.1.41"),
		}}},
		links: []link{
			linkOf("first", 10, "10.0.0.10"), linkOf("second", 11, "10.0.1.10"), linkOf("prefix", 12, "10.0.1.40"), linkOf("six", 13, "2001:db8::5"),
			{name: "vlan" + linkSuffix("shop", "branch"), index: 14, netns: ns(14), peer: "eth0", addresses: []netip.Addr{addr("10.0.2.7")}},
			{name: "eni" + linkSuffix("shop", "standard"), index: 15, netns: ns(15), peer: "eth0", addresses: []netip.Addr{addr("10.0.2.8")}},
			{name: "veth12", index: 16, netns: ns(16), peer: "eth0", addresses: []netip.Addr{addr("172.17.0.2")}},
		},
		rules: []attachment.AdoptedRule{
			{Priority: ruleToPod, To: host("10.0.0.10"), Table: mainTable},
			{Priority: ruleFromPod, From: host("10.0.1.10"), Table: 2}, {Priority: ruleFromPod, From: host("10.0.1.40"), Table: 2},
			{Priority: ruleFromPod, From: host("10.0.2.8"), Table: 104},
		},
	}
}

// fates returns the fate and the uplink of each pod.
func fates(s survey) (list []string) {
	for _, p := range s.pods() {
		name := p.Name
		if name == "" {
			name = p.HostLink
		}
		list = append(list, strings.TrimSpace(name+" "+string(p.Fate)+" "+p.Uplink))
	}
	slices.Sort(list)
	return list
}

func TestFates(t *testing.T) {
	s := node1()
	want := []string{
		"eni" + linkSuffix("shop", "standard") + " replace", "first adopt eni-0", "gone " + string(migrate.Gone), "prefix adopt eni-1", "second adopt eni-1", "six adopt eni-0",
		"vlan" + linkSuffix("shop", "branch") + " replace",
	}
	slices.Sort(want)
	check.Equal(t, fates(s), want, "pods")
	for _, p := range s.pods() {
		if p.Name == "second" {
			check.Equal(t, p.adopt.Lease.Uplink, 1, "uplink of %s", p.Name)
			check.Equal(t, p.adopt.Former.HostLink, "eni"+linkSuffix("shop", "second"), "former link")
			check.Equal(t, p.adopt.Former.Created, time.Unix(0, 5).UTC(), "creation")
		}
	}
}

func TestPodsThatMustBeReplaced(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*survey)
		why  string
	}{
		"several cards":        {func(s *survey) { s.checkpoint.Allocations[1].Metadata.Interfaces = 2 }, "network cards"},
		"no namespace":         {func(s *survey) { s.links[1].netns = attachment.Netns{} }, "network namespace"},
		"another interface":    {func(s *survey) { s.links[1].peer = "net1" }, "interface is net1"},
		"another address":      {func(s *survey) { s.links[1].addresses = []netip.Addr{addr("10.0.1.99")} }, "does not have 10.0.1.10"},
		"table of no ENI":      {func(s *survey) { s.rules[1].Table = 9 }, "routing table 9"},
		"trunk":                {func(s *survey) { s.enis[1].MAC, s.trunks = []byte{2, 0, 0, 0, 0, 9}, []string{"02:00:00:00:00:09"} }, "trunk ENI eni-1"},
		"address of other ENI": {func(s *survey) { s.rules[1].Table = mainTable }, "address of eni-1"},
	} {
		s := node1()
		tc.edit(&s)
		i := slices.IndexFunc(s.pods(), func(p pod) bool { return p.Name == "second" })
		if p := s.pods()[i]; p.Fate != migrate.Replace || !strings.Contains(p.Why, tc.why) {
			t.Errorf("%s: fate = %s, %q; want replace because of %q", name, p.Fate, p.Why, tc.why)
		}
	}
}

// An entry of a pod that ended after the migration does not claim the address of Berth's next pod.
func TestStaleEntryIsGone(t *testing.T) {
	s := node1()
	s.links[1] = link{name: "bthaaaaaaaaaaaa", index: 11, netns: s.links[1].netns, peer: "eth0", addresses: s.links[1].addresses}
	s.records = []attachment.Record{{
		Key: attachment.Key{Network: "aws-cni", ContainerID: "c-new", IfName: "eth0"}, Pod: attachment.Pod{Namespace: "shop", Name: "new"},
		Lease: attachment.Lease{IPv4: addr("10.0.1.10"), Uplink: 1}, HostLink: "bthaaaaaaaaaaaa", State: attachment.Ready, Since: time.Unix(9, 0),
	}}
	list := fates(s)
	for _, want := range []string{"second gone", "new berth"} {
		if !slices.Contains(list, want) {
			t.Errorf("pods = %v, want %s", list, want)
		}
	}
	staged := s.staged()
	i := slices.IndexFunc(staged.Allocations, func(a foreign.Allocation) bool { return a.IPv4 == addr("10.0.1.10") })
	if i < 0 || staged.Allocations[i].Metadata.Pod != "new" || staged.Allocations[i].NetworkName != "aws-cni" || staged.Allocations[i].Timestamp != 9e9 {
		t.Errorf("staged checkpoint = %+v, want 10.0.1.10 of pod new", staged.Allocations)
	}
	f := s.former(s.records[0])
	check.Equal(t, f.HostLink, "eni"+linkSuffix("shop", "new"), "link")
	check.Equal(t, f.Rules, []attachment.AdoptedRule{{Priority: ruleToPod, To: host("10.0.1.10"), Table: mainTable}, {Priority: ruleFromPod, From: host("10.0.1.10"), Table: 2}}, "rules")
}

// The rollback keeps the entry of a pod that the checkpoint does not name: ipamd would hand out its address again.
func TestEntryWithoutNameIsStaged(t *testing.T) {
	s := node1()
	s.checkpoint.Allocations = s.checkpoint.Allocations[1:2]
	s.checkpoint.Allocations[0].Metadata = foreign.Metadata{}
	check.Equal(t, s.staged().Allocations, s.checkpoint.Allocations, "staged entries")
	s.records = []attachment.Record{{Key: attachment.Key{ContainerID: "c-new"}, Pod: attachment.Pod{Name: "new"}, Lease: attachment.Lease{IPv4: addr("10.0.1.10")}}}
	staged := s.staged().Allocations
	if len(staged) != 1 || staged[0].ContainerID != "c-new" {
		t.Errorf("staged entries = %+v, want that of the pod of Berth that has the address", staged)
	}
}

// Pods that the checkpoint does not list, as when it is not in the folder, are the Amazon VPC CNI's still.
func TestUnlistedPodsAreReplaced(t *testing.T) {
	s := node1()
	s.checkpoint, s.links[1].netns, s.links[1].addresses = foreign.Checkpoint{}, attachment.Netns{}, nil
	unlisted := 0
	for _, p := range s.pods() {
		if p.Fate == migrate.Replace && strings.Contains(p.Why, "does not list") {
			unlisted++
		}
	}
	check.Equal(t, unlisted, 4, "unlisted pods of %v", fates(s))
}

// A node can move back after a reboot, which removes ipamd's checkpoint, unless the migration was finished.
func TestRollbackAfterReboot(t *testing.T) {
	n := &Node{files: files{run: t.TempDir(), conf: t.TempDir()}}
	check.OK(t, os.WriteFile(n.files.list(), []byte("{}"), 0o644))
	berth := []attachment.Record{{}}
	is := func(when string, want, refused bool) {
		t.Helper()
		_, aside, _, err := n.files.read()
		check.OK(t, err)
		begun, err := survey{saved: saved{aside: aside, hidden: n.files.hidden()}, records: berth}.begun()
		if begun != want || (err != nil) != refused {
			t.Errorf("%s: begun() = %v, %v", when, begun, err)
		}
	}
	is("before", false, true)
	_, err := n.files.setAside()
	check.OK(t, err)
	_, err = n.files.hideConflist()
	check.OK(t, err)
	is("applied", true, false)
	check.OK(t, os.Remove(n.files.checkpoint()))
	check.OK(t, os.Remove(n.files.aside()))
	is("after a reboot", true, false)
	_, err = n.removeFiles(survey{})
	check.OK(t, err)
	is("finished", false, true)
	if begun, err := (survey{}).begun(); begun || err != nil {
		t.Errorf("without pods of Berth: begun() = %v, %v", begun, err)
	}
}

// After the migration ipamd still refuses to start, until a rollback finds nothing to roll back.
func TestFenceOutlastsFinish(t *testing.T) {
	n := &Node{files: files{run: t.TempDir(), conf: t.TempDir()}}
	for _, path := range []string{n.files.checkpoint(), n.files.aside(), n.files.list()} {
		check.OK(t, os.WriteFile(path, []byte(`{"version":"vpc-cni-ipam/1","allocations":[]}`), 0o644))
	}
	unfence := func(want bool) {
		t.Helper()
		changed, err := n.files.unfence()
		check.OK(t, err)
		check.Equal(t, changed, want, "unfence")
	}
	unfence(false) // ipamd's own
	for i := range 2 {
		taken, err := n.files.take()
		check.OK(t, err)
		check.Equal(t, taken, i == 0, "take, call %d", i+1)
		changed, err := n.removeFiles(survey{})
		check.OK(t, err)
		check.Equal(t, len(changed), 2*(1-i), "removed files, call %d", i+1)
		check.Equal(t, n.files.fenced(), true, "fenced")
	}
	unfence(true)
	unfence(false)
}

// surveyed is the metadata service of a node on which something happens when it is surveyed.
type surveyed func() error

func (s surveyed) Identity(context.Context) (cloud.Identity, error) {
	return cloud.Identity{InstanceID: "i-1"}, s()
}

func (surveyed) AttachedENIs(context.Context) ([]cloud.AttachedENI, error) { return nil, nil }

// checkpointed is a node with ipamd's checkpoint.
func checkpointed(t *testing.T, happens func(n *Node, survey int) error) *Node {
	surveys := 0
	var n *Node
	n, err := New(Options{NetnsDirs: []string{t.TempDir()}, Proc: t.TempDir(), CNICache: t.TempDir(), Metadata: surveyed(func() error {
		surveys++
		return happens(n, surveys)
	})})
	check.OK(t, err)
	t.Cleanup(func() { check.OK(t, n.Close()) })
	n.o.Config.StateDir = t.TempDir()
	n.files = files{run: t.TempDir(), conf: t.TempDir()}
	check.OK(t, os.WriteFile(n.files.checkpoint(), []byte(emptyCheckpoint), 0o644))
	return n
}

const emptyCheckpoint = `{"version":"vpc-cni-ipam/1","allocations":[]}`

// A refused finish leaves ipamd's checkpoint where it was, and reports it if that was changed meanwhile.
func TestRefusedFinish(t *testing.T) {
	for at, changed := range map[int][]string{1: nil, 2: {setCheckpointAside, putCheckpointBack}} {
		refusal := errors.New("refused")
		n := checkpointed(t, func(_ *Node, survey int) error {
			if survey == at {
				return refusal
			}
			return nil
		})
		r, err := n.Finish(t.Context())
		if !errors.Is(err, refusal) || !slices.Equal(r.Changed, changed) {
			t.Errorf("refused at survey %d: changed %q, %v, want %q and the refusal", at, r.Changed, err, changed)
		}
		data, err := os.ReadFile(n.files.checkpoint())
		if _, aside := os.Lstat(n.files.aside()); err != nil || string(data) != emptyCheckpoint || aside == nil {
			t.Errorf("refused at survey %d: checkpoint = %s, %v, set aside: %v", at, data, err, aside == nil)
		}
	}
}

// A rollback that sets a checkpoint aside looks at it, as ipamd may have written it after the survey.
func TestRollbackSurveysAgain(t *testing.T) {
	n := checkpointed(t, func(n *Node, _ int) error { return os.WriteFile(n.files.aside(), []byte("{"), 0o644) })
	p := &progress{}
	if err := n.rollback(t.Context(), survey{}, p); err == nil || !slices.Equal(p.Changed, []string{setCheckpointAside}) {
		t.Errorf("rollback() = %v, changed %q, want an error about the checkpoint, which is aside", err, p.Changed)
	}
	if data, err := os.ReadFile(n.files.aside()); err != nil || string(data) != "{" {
		t.Errorf("checkpoint aside = %s, %v, want it unchanged", data, err)
	}
}

// Rules of the Amazon VPC CNI are told from those of others, which stay.
func TestFormerRules(t *testing.T) {
	s := node1()
	s.instance.VPCCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	rule := func(priority, table int, edit func(*netlink.Rule)) netlink.Rule {
		r := *netlink.NewRule()
		r.Priority, r.Table = priority, table
		edit(&r)
		return r
	}
	in := func(name string) func(*netlink.Rule) { return func(r *netlink.Rule) { r.IifName = name } }
	to := func(a string) func(*netlink.Rule) {
		return func(r *netlink.Rule) { r.Dst = rtnl.IPNet(netip.MustParsePrefix(a)) }
	}
	from := func(a string) func(*netlink.Rule) {
		return func(r *netlink.Rule) { r.Src = rtnl.IPNet(netip.MustParsePrefix(a)) }
	}
	branch := "vlan" + linkSuffix("shop", "branch")
	for name, tc := range map[string]struct {
		rule netlink.Rule
		want bool
	}{
		"to a pod":                     {rule(ruleToPod, mainTable, to("10.0.0.10/32")), true},
		"to another network":           {rule(ruleToPod, mainTable, to("192.168.0.1/32")), false},
		"from a pod":                   {rule(ruleFromPod, 2, from("10.0.1.10/32")), true},
		"from a subnet":                {rule(ruleFromPod, 2, from("10.0.1.0/24")), false},
		"from a VLAN":                  {rule(ruleBranch, 107, in("vlan.eth.7")), true},
		"from a VLAN of another table": {rule(ruleBranch, 108, in("vlan.eth.7")), false},
		"from a pod with a branch":     {rule(ruleBranch, 107, in(branch)), true},
		"of another priority":          {rule(ruleBranch+1, 107, in(branch)), false},
		"from another link":            {rule(ruleBranch, 107, in("eth1")), false},
		"to the main table":            {rule(ruleBranch, mainTable, in(branch)), false},
		"of an address on a VLAN": {rule(ruleBranch, 107, func(r *netlink.Rule) {
			in("vlan.eth.7")(r)
			to("10.0.0.10/32")(r)
		}), false},
	} {
		check.Equal(t, s.isFormer(tc.rule), tc.want, "%s", name)
	}
}

// ipamd neither runs nor can start beside pods of Berth. Before and after the migration it may.
func TestBothSystems(t *testing.T) {
	dir := t.TempDir()
	f := files{run: dir}
	socket, err := net.Listen("unix", filepath.Join(dir, "ipamd.sock"))
	check.OK(t, err)
	defer func() { _ = socket.Close() }()
	berth := []attachment.Record{{}}
	for name, tc := range map[string]struct {
		s     survey
		runs  error
		wants int
	}{
		"before":             {survey{saved: saved{checkpoint: foreign.Checkpoint{Version: foreign.CheckpointVersion}}}, f.formerRuns(t.Context()), 0},
		"applied":            {survey{saved: saved{checkpoint: foreign.Checkpoint{Version: foreign.CheckpointVersion}, aside: true}, records: berth}, nil, 0},
		"finished":           {survey{records: berth}, nil, 0},
		"ipamd runs":         {survey{saved: saved{aside: true}, records: berth}, f.formerRuns(t.Context()), 1},
		"it can start":       {survey{saved: saved{checkpoint: foreign.Checkpoint{Version: foreign.CheckpointVersion}}, records: berth}, nil, 1},
		"it started and ran": {survey{saved: saved{checkpoint: foreign.Checkpoint{Version: foreign.CheckpointVersion}}, records: berth}, f.formerRuns(t.Context()), 2},
	} {
		if list := tc.s.both(tc.runs); len(list) != tc.wants {
			t.Errorf("%s: %q, want %d problems", name, list, tc.wants)
		}
	}
}

// Only rules for addresses of the VPC are removed, and not those of pods whose namespace cannot be entered.
func TestStaleRules(t *testing.T) {
	s := node1()
	s.instance.VPCCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	s.links[1].netns, s.links[1].addresses = attachment.Netns{}, nil
	for _, tc := range []struct {
		rule attachment.AdoptedRule
		want bool
	}{
		{attachment.AdoptedRule{Priority: ruleToPod, To: host("10.0.0.99")}, true},
		{attachment.AdoptedRule{Priority: ruleFromPod, From: host("10.0.1.41")}, true}, // of a pod that is gone
		{attachment.AdoptedRule{Priority: ruleFromPod, From: host("10.0.1.10")}, false},
		{attachment.AdoptedRule{Priority: ruleToPod, To: host("10.0.0.10")}, false},
		{attachment.AdoptedRule{Priority: ruleToPod, To: host("192.168.7.7")}, false},
		{attachment.AdoptedRule{Priority: 700, To: host("10.0.0.99")}, false},
	} {
		check.Equal(t, s.isStale(tc.rule), tc.want, "%+v", tc.rule)
	}
}

func TestObstacles(t *testing.T) {
	for name, tc := range map[string]struct {
		edit   func(*survey)
		what   string
		blocks bool
	}{
		"damaged records": {func(s *survey) { s.quarantine = 1 }, "damaged", true},
		"host ports":      {func(s *survey) { s.hostPorts, s.network = true, "berth" }, "portmap", false},
		"no UID":          {func(s *survey) { s.policies = true }, "UIDs of 4 pods", false},
		"old kernel":      {func(s *survey) { s.kernel = version{6, 1} }, "Linux 6.1", false},
		"address twice":   {func(s *survey) { s.links[0].addresses = s.links[1].addresses }, "both lead", true},
	} {
		s := node1()
		if left := s.obstacles(); len(left) > 0 {
			t.Fatalf("obstacles of the node = %+v, want none", left)
		}
		tc.edit(&s)
		list := s.obstacles()
		if len(list) != 1 || !strings.Contains(list[0].What, tc.what) || list[0].Blocks != tc.blocks || list[0].Remedy == "" {
			t.Errorf("%s: obstacles = %+v, want one about %q that blocks: %v", name, list, tc.what, tc.blocks)
		}
	}
}

// ipamd's checkpoint is set aside once, and put back as it was.
func TestCheckpointIsSetAside(t *testing.T) {
	f := files{run: t.TempDir(), conf: t.TempDir()}
	original := `{"version":"vpc-cni-ipam/1","allocations":[{"networkName":"aws-cni","containerID":"c1","ifName":"eth0","ipv4":"10.0.0.5","allocationTimestamp":7,"metadata":{"k8sPodNamespace":"shop","k8sPodName":"web","interfacesCount":1}}]}`
	write := func(path, text string) { check.OK(t, os.WriteFile(path, []byte(text), 0o644)) }
	read := func(path string) string {
		data, err := os.ReadFile(path)
		check.OK(t, err)
		return strings.TrimSpace(string(data))
	}
	write(f.checkpoint(), original)
	write(f.list(), `{"name":"aws-cni","plugins":[{"type":"aws-cni","vethPrefix":"abc"},{"type":"portmap"}]}`)
	for i := range 2 {
		changed, err := f.setAside()
		check.OK(t, err)
		check.Equal(t, changed, i == 0, "setAside, call %d", i+1)
		changed, err = f.hideConflist()
		check.OK(t, err)
		check.Equal(t, changed, i == 0, "hideConflist, call %d", i+1)
	}
	if c, err := foreign.ParseCheckpoint([]byte(read(f.checkpoint()))); err != nil || c.Version == foreign.CheckpointVersion || len(c.Allocations) > 0 {
		t.Errorf("checkpoint in place = %+v, %v, want one that ipamd does not read", c, err)
	}
	c, aside, unreadable, err := f.read()
	if err != nil || unreadable != nil || !aside || len(c.Allocations) != 1 {
		t.Errorf("read() = %+v, %v, %v, %v", c, aside, unreadable, err)
	}
	list, err := f.conflist()
	check.OK(t, err)
	if list.prefix() != "abc" || !list.has("portmap") {
		t.Errorf("configuration aside = %+v", list)
	}
	_, err = f.showConflist()
	check.OK(t, err)
	_, err = f.restore()
	check.OK(t, err)
	check.Equal(t, read(f.checkpoint()), original, "checkpoint after the rollback")
	if left, _ := filepath.Glob(filepath.Join(f.run, "*"+asideSuffix)); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

// An apply was killed before ipamd was kept from starting, and ipamd ran since: its checkpoint counts, not the one aside.
func TestCheckpointAsideIsOutdated(t *testing.T) {
	f := files{run: t.TempDir(), conf: t.TempDir()}
	write := func(path, container string) {
		check.OK(t, os.WriteFile(path, []byte(`{"version":"vpc-cni-ipam/1","allocations":[{"networkName":"aws-cni","containerID":"`+container+`","ipv4":"10.0.0.5"}]}`), 0o644))
	}
	write(f.aside(), "old")
	write(f.checkpoint(), "new")
	for i := range 3 {
		c, aside, unreadable, err := f.read()
		if err != nil || unreadable != nil || aside != (i > 0) || len(c.Allocations) != 1 || c.Allocations[0].ContainerID != "new" {
			t.Errorf("read() after %d calls of setAside = %+v, %v, %v, %v", i, c, aside, unreadable, err)
		}
		changed, err := f.setAside()
		check.OK(t, err)
		check.Equal(t, changed, i != 1, "setAside, call %d", i+1)
		if i == 1 { // somebody removes it, so that ipamd starts
			check.OK(t, os.Remove(f.checkpoint()))
		}
	}
	data, err := os.ReadFile(f.checkpoint())
	check.OK(t, err)
	check.Equal(t, string(data), string(foreign.Moved), "checkpoint in place")
}

// ipamd writes checkpoints while its checkpoint is set aside and put back: the last one is never lost, and is not taken for
// the one from which it shall start.
func TestCheckpointsWrittenMeanwhile(t *testing.T) {
	f := files{run: t.TempDir(), conf: t.TempDir()}
	const most = 200
	write := func(i int) { // as ipamd does
		tmp := f.checkpoint() + ".tmp1"
		check.OK(t, os.WriteFile(tmp, fmt.Appendf(nil, `{"version":"vpc-cni-ipam/1","allocations":[{"containerID":"%d","ipv4":"10.0.0.5"}]}`, i), 0o644))
		check.OK(t, os.Rename(tmp, f.checkpoint()))
	}
	write(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range most {
			write(i + 1)
		}
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		if _, err := f.setAside(); err != nil {
			t.Fatal(err)
		}
	}
	c, aside, unreadable, err := f.read()
	if err != nil || unreadable != nil || !aside || len(c.Allocations) != 1 || c.Allocations[0].ContainerID != fmt.Sprint(most) {
		t.Fatalf("read() = %+v, %v, %v, %v, want the last checkpoint, aside", c, aside, unreadable, err)
	}
	write(most + 1)
	if changed, err := f.restore(); err == nil || changed {
		t.Errorf("restore() = %v, %v, want an error: ipamd has written another one", changed, err)
	}
	if c, aside, _, err := f.read(); err != nil || aside || c.Allocations[0].ContainerID != fmt.Sprint(most+1) {
		t.Errorf("read() after restore = %+v, %v, %v, want the last checkpoint in place", c, aside, err)
	}
}

// A rollback that was killed right after it had put the checkpoint back leaves a file, which the next one removes.
func TestKilledRollbackLeavesNothing(t *testing.T) {
	f := files{run: t.TempDir(), conf: t.TempDir()}
	check.OK(t, os.WriteFile(f.checkpoint(), []byte(`{"version":"vpc-cni-ipam/1","allocations":[]}`), 0o644))
	check.OK(t, os.WriteFile(f.aside(), foreign.Moved, 0o644))
	if _, aside, _, err := f.read(); aside || err != nil {
		t.Errorf("read() = aside %v, %v", aside, err)
	}
	changed, err := f.unfence()
	check.OK(t, err)
	check.Equal(t, changed, false, "unfence")
	left, _ := filepath.Glob(filepath.Join(f.run, "*"))
	check.Equal(t, strings.Join(left, " "), f.checkpoint(), "files")
}

// An unreadable checkpoint is not set aside: its pods would be lost.
func TestUnreadableCheckpointStays(t *testing.T) {
	f := files{run: t.TempDir(), conf: t.TempDir()}
	check.OK(t, os.WriteFile(f.checkpoint(), []byte(`{"version":"vpc-cni-ipam/1","allocations":[{"containerID":"","ipv4":"10.0.0.5"}]}`), 0o644))
	if changed, err := f.setAside(); err == nil || changed {
		t.Errorf("setAside() = %v, %v, want an error", changed, err)
	}
	if _, err := os.Stat(f.aside()); err == nil {
		t.Error("a checkpoint was set aside")
	}
}
