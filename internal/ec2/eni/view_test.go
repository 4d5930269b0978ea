package eni

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// at returns an ENI attached to the node at a device index.
func at(e cloud.ENI, index int, id string) cloud.ENI {
	e.Attachment = &cloud.Attachment{ID: id, InstanceID: "i-1", DeviceIndex: index, Status: "attached"}
	return e
}

// A device index, like a MAC address, belongs to one ENI: the one that had it before.
func TestDeviceIndexesThatTwoHave(t *testing.T) {
	one, two, three := at(eniOf(1, "10.0.0.4"), 0, "a-1"), at(eniOf(2, "10.0.0.5"), 1, "a-2"), at(eniOf(3, "10.0.0.6"), 2, "a-3")
	card := three
	card.Attachment = &cloud.Attachment{ID: "a-3", InstanceID: "i-1", DeviceIndex: 1, NetworkCard: 1, Status: "attached"}
	leaving := at(three, 1, "a-3")
	leaving.Attachment.Status = "detaching"
	for _, tt := range []struct {
		name    string
		listed  []cloud.ENI
		double  string
		primary string
	}{
		{"distinct indexes", []cloud.ENI{one, two, three}, "", "eni-1"},
		{"new ENI at the second's index", []cloud.ENI{one, two, at(three, 1, "a-3")}, "eni-3", "eni-1"},
		{"second ENI at the third's index", []cloud.ENI{one, at(two, 2, "a-2"), three}, "eni-2", "eni-1"},
		{"new ENI at the primary's index", []cloud.ENI{one, two, at(three, 0, "a-3")}, "eni-3", "eni-1"},
		{"same index on another network card", []cloud.ENI{one, two, card}, "", "eni-1"},
		{"same index, detaching", []cloud.ENI{one, two, leaving}, "", "eni-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(0, 0)
			v.observed(0, one, two, three)
			v.observed(1, tt.listed...)
			for id, k := range v.enis {
				check.Equal(t, k.ambiguous, id == tt.double, "%s is ambiguous", id)
			}
			if k, ok := v.primary(); !ok || k.ID != tt.primary {
				t.Fatalf("primary = %v, want %s", k, tt.primary)
			}
		})
	}
}

// The attachment to detach is the listed one: a reply may name another's.
func TestAttachmentsThatRepliesName(t *testing.T) {
	listed := at(eniOf(2, "10.0.0.5"), 1, "a-2")
	for _, tt := range []struct {
		name   string
		reply  cloud.ENI
		listed cloud.ENI
		want   string
	}{
		{"as listed", listed, listed, "a-2"},
		{"another's", at(listed, 1, "a-of-another-node"), listed, "a-2"},
		{"not yet listed", at(listed, 1, "a-2"), eniOf(2, "10.0.0.5"), "a-2"},
		{"listing with a former index", at(listed, 1, "a-2"), at(listed, 3, "a-old"), "a-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(time.Minute, 0)
			k := newKnown(factsOf(tt.reply, "test"))
			k.replied = unix(1)
			v.enis[k.ID] = k
			v.observed(2, tt.listed)
			if got := v.enis["eni-2"].Attachment; got == nil || got.ID != tt.want || got.DeviceIndex != 1 {
				t.Errorf("attachment = %+v, want %s at device index 1", got, tt.want)
			}
		})
	}
}

// ENIs attached to, or created for, another instance do not belong to this node.
func TestENIsOfOtherInstances(t *testing.T) {
	mine, others, adopted := eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.5"), at(eniOf(3, "10.0.0.6"), 1, "a-3")
	mine.Tags = map[string]string{TagInstanceID: "i-1"}
	others.Tags = map[string]string{TagInstanceID: "i-2"}
	adopted.Tags = map[string]string{TagInstanceID: "i-2"}
	away := at(eniOf(4, "10.0.0.7"), 1, "a-4")
	away.Attachment.InstanceID = "i-2"
	o := &observer{cfg: &Config{InstanceID: "i-1"}}
	var got []string
	for _, e := range o.ofInstance([]cloud.ENI{mine, others, adopted, away, eniOf(5, "10.0.0.8")}) {
		got = append(got, e.ID)
	}
	if want := []string{"eni-1", "eni-3", "eni-5"}; !slices.Equal(got, want) {
		t.Errorf("ENIs = %v, want %v", got, want)
	}
}

func TestDisputes(t *testing.T) {
	with := func(e cloud.ENI, p ...string) cloud.ENI { e.Prefixes = prefixes(p...); return e }
	for _, tt := range []struct {
		name        string
		before, now []cloud.ENI
		want        string // unused assignments
	}{
		{"no disputes", nil, []cloud.ENI{with(eniOf(1, "10.0.0.4", "10.0.0.5"), "10.0.1.0/28"), with(eniOf(2, "10.0.0.6", "10.0.0.7"), "10.0.1.16/28")}, "[]"},
		{"address of two ENIs, new to both", nil, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.9"), eniOf(2, "10.0.0.6", "10.0.0.9")}, "[10.0.0.9/32 eni-1 10.0.0.9/32 eni-2]"},
		{"address of two ENIs, held by the second", []cloud.ENI{eniOf(2, "10.0.0.6", "10.0.0.9")}, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.9"), eniOf(2, "10.0.0.6", "10.0.0.9")}, "[10.0.0.9/32 eni-1]"},
		{"own primary address", nil, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.4", "10.0.0.5")}, "[10.0.0.4/32 eni-1]"},
		{"primary address of another ENI", []cloud.ENI{eniOf(2, "10.0.0.6", "10.0.0.4")}, []cloud.ENI{eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.6", "10.0.0.4")}, "[10.0.0.4/32 eni-2]"},
		{"primary address within a prefix", nil, []cloud.ENI{eniOf(1, "10.0.0.4"), with(eniOf(2, "10.0.0.20"), "10.0.0.0/28")}, "[10.0.0.0/28 eni-2]"},
		{"address within a known prefix", []cloud.ENI{with(eniOf(2, "10.0.0.6"), "10.0.1.0/28")},
			[]cloud.ENI{eniOf(1, "10.0.0.4", "10.0.1.3"), with(eniOf(2, "10.0.0.6"), "10.0.1.0/28")}, "[10.0.1.3/32 eni-1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, d := range disputes(all(tt.before...), all(tt.now...)) {
				got = append(got, d.prefix.String(), d.eni)
			}
			check.Equal(t, fmt.Sprint(got), tt.want, "disputes (got %v)", got)
		})
	}
}

func TestDuplicateProperties(t *testing.T) {
	one, two, three := eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.5"), eniOf(3, "10.0.0.6")
	if got := doubles(nil, all(one, two, three)); got != nil {
		t.Errorf("doubles() = %v, want none", got)
	}
	mac := two
	mac.MAC = one.MAC
	check.Equal(t, doubles(all(one), all(one, mac, three)), []string{"eni-2"}, "ENIs with the MAC of eni-1")
	check.Equal(t, doubles(nil, all(one, mac, three)), []string{"eni-1", "eni-2"}, "new ENIs with the same MAC")
	address := three
	address.Primary = one.Primary
	check.Equal(t, doubles(all(one), all(one, two, address)), []string{"eni-3"}, "ENIs with the primary address of eni-1")
	bare := cloud.ENI{ID: "eni-4"} // such as an EFA-only ENI
	if got := doubles(nil, all(bare, cloud.ENI{ID: "eni-5"})); got != nil {
		t.Errorf("doubles() of ENIs without addresses = %v, want none", got)
	}
}

// An ENI keeps its MAC and primary address for life, regardless of listings.
func TestListingChangesNoENIsIdentity(t *testing.T) {
	v := newView(0, 0)
	was := eniOf(1, "10.0.0.4", "10.0.0.5")
	v.observed(0, was)
	e := eniOf(1, "10.0.0.99", "10.0.0.5", "10.0.0.5")
	e.MAC = net.HardwareAddr{2, 0, 0, 0, 9, 9}
	v.observed(1, e)
	k := v.enis["eni-1"]
	if k.MAC.String() != was.MAC.String() || k.Primary != was.Primary || !slices.Equal(k.held, cloud.HostPrefixes(was.Addresses)) {
		t.Errorf("ENI = %+v, want its former MAC, primary address and addresses", k.facts)
	}
	check.Equal(t, len(v.contradictions), 1, "number of contradictions, of %v", v.contradictions)
	v.observed(2, was)
	check.Equal(t, len(v.contradictions), 0, "contradictions after a correct listing (%v)", v.contradictions)
}

func TestOurs(t *testing.T) {
	made := func(change func(*cloud.ENI)) cloud.ENI {
		e := at(eniOf(2, "10.0.0.5"), 1, "a-2")
		e.Type, e.Description = cloud.InterfaceOrdinary, Description("i-1")
		e.Tags = map[string]string{TagCluster: "test", TagOwner: Owner}
		change(&e)
		return e
	}
	for name, c := range map[string]struct {
		e    cloud.ENI
		want bool
	}{
		"created by Berth":              {made(func(*cloud.ENI) {}), true},
		"no description":                {made(func(e *cloud.ENI) { e.Description = "" }), true},
		"detached":                      {made(func(e *cloud.ENI) { e.Attachment = nil }), true},
		"detached, foreign description": {made(func(e *cloud.ENI) { e.Attachment, e.Description = nil, "database" }), false},
		"another cluster":               {made(func(e *cloud.ENI) { e.Tags[TagCluster] = "other" }), false},
		"another owner":                 {made(func(e *cloud.ENI) { e.Tags[TagOwner] = "somebody" }), false},
		"unmanaged":                     {made(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "true" }), false},
		"not unmanaged":                 {made(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "False" }), true},
		"EFA interface":                 {made(func(e *cloud.ENI) { e.Type = "efa" }), false},
		"on another network card":       {made(func(e *cloud.ENI) { e.Attachment.NetworkCard = 1 }), false},
		"trunk":                         {made(func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }), true},
		"detached trunk":                {made(func(e *cloud.ENI) { e.Type, e.Attachment = cloud.InterfaceTrunk, nil }), true},
		"foreign trunk":                 {made(func(e *cloud.ENI) { e.Type, e.Description = cloud.InterfaceTrunk, "aws-k8s-trunk-eni" }), false},
		"branch":                        {made(func(e *cloud.ENI) { e.Type, e.Attachment, e.Status = cloud.InterfaceBranch, nil, "in-use" }), false},
		"branch by status":              {made(func(e *cloud.ENI) { e.Attachment, e.Status = nil, "in-use" }), false},
		"future branch":                 {made(func(e *cloud.ENI) { e.Attachment, e.Tags[TagNIC] = nil, "uid" }), false},
		"just created":                  {made(func(e *cloud.ENI) { e.Attachment, e.Status = nil, "pending" }), true},
		"primary":                       {at(eniOf(1, "10.0.0.4"), 0, "a-1"), true},
	} {
		check.Equal(t, factsOf(c.e, "test").ours(), c.want, "%s", name)
	}
}

// A stored inventory restores the published ENI in the next process.
func TestStoredENI(t *testing.T) {
	e := ENI{ID: "eni-2", DeviceIndex: 2, PrimaryIPv4: addrs("10.0.0.5")[0], Addresses: addrs("10.0.0.5", "10.0.0.7"), Prefixes: prefixes("10.0.1.0/28"), IPv6: addrs("2001:db8::1")}
	f := e.facts("i-1")
	if !f.ours() || f.index() != 2 || primary(f.Attachment) {
		t.Errorf("restored facts = %+v, want Berth's ENI at index 2", f)
	}
	again := ENI{ID: f.ID, DeviceIndex: f.index(), PrimaryIPv4: f.Primary}
	again.Addresses, again.Prefixes, again.IPv6, again.IPv6Prefixes = split(f.held)
	e.Addresses = e.Addresses[1:] // the primary address is not among the secondary ones
	if !again.Equal(e) {
		t.Errorf("published again = %+v, want %+v", again, e)
	}
}

func TestInvalidInventoryIsRejected(t *testing.T) {
	for _, c := range []struct{ data, word string }{
		{`{`, "inventory"},
		{`{}`, "instanceID"},
		{`{"instanceID":"i-1","enis":[{"id":"a"},{"id":"a"}]}`, "unique, non-empty ID"},
		{`{"instanceID":"i-1","enis":[{"id":"a","deviceIndex":-1}]}`, "deviceIndex -1"},
		{`{"instanceID":"i-1","enis":[{"id":"a","mac":"zz"}]}`, "mac"},
		{`{"instanceID":"i-1","enis":[{"id":"a","addresses":[""]}]}`, "not an address"},
		{`{"instanceID":"i-1","enis":[{"id":"a","addresses":["10.0.0.1"]},{"id":"b","addresses":["10.0.0.1"]}]}`, "is on both a and b"},
		{`{"instanceID":"i-1","enis":[{"id":"a","prefixes":["10.0.0.1/28"]}]}`, "aligned"},
		{`{"instanceID":"i-1","enis":[{"id":"a"}],"leaving":[{"eni":"a"}]}`, "leaving"},
		{`{"instanceID":"i-1","releasing":[{"eni":"a"}]}`, "releasing"},
	} {
		if _, err := DecodeInventory([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: error = %v, want one containing %q", c.data, err, c.word)
		}
	}
}

// Any accepted inventory can be encoded, decoded again and used.
func FuzzDecodeInventory(f *testing.F) {
	f.Add([]byte(`{"instanceID":"i-1","enis":[{"id":"a","mac":"02:00:00:00:00:01","serves":true,"addresses":["10.0.0.1"],"prefixes":["10.0.0.16/28"]}],"leaving":[{"eni":"b","since":"2026-01-01T00:00:00Z"}],"releasing":[{"prefix":"10.0.0.1/32","eni":"a","since":"2026-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"instanceID":"i-1","enis":[{"id":"a","ipv6":["2001:db8::1"],"ipv6Prefixes":["2001:db8::/80"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		inv, err := DecodeInventory(data)
		if err != nil {
			return
		}
		out, err := json.Marshal(inv)
		if err != nil {
			t.Fatalf("decoded %s but cannot encode it: %v", data, err)
		}
		again, err := DecodeInventory(out)
		if err != nil {
			t.Fatalf("encoded %s but cannot decode it: %v", out, err)
		}
		if len(again.ENIs) != len(inv.ENIs) {
			t.Fatalf("%d ENIs became %d in the round trip", len(inv.ENIs), len(again.ENIs))
		}
		for i := range inv.ENIs {
			if !inv.ENIs[i].Equal(again.ENIs[i]) {
				t.Fatalf("%+v became %+v in the round trip", inv.ENIs[i], again.ENIs[i])
			}
		}
	})
}

func TestNextLookup(t *testing.T) {
	l := lookups{
		at:         map[string]time.Time{"a": unix(3), "b": unix(2), "c": unix(2), "d": unix(20)},
		unresolved: map[string]unresolvedCall{"a": {}, "d": {}},
	}
	if id, ok := l.next(unix(10), false); id != "b" || !ok {
		t.Errorf("next lookup = %q, want b", id)
	}
	if id, ok := l.next(unix(10), true); id != "a" || !ok {
		t.Errorf("next urgent lookup = %q, want a", id)
	}
	l.forget("a")
	if id, ok := l.next(unix(10), true); ok {
		t.Errorf("next urgent lookup = %q, want none due", id)
	}
}

// An unresolved call is resolved by its effect, or once listings can no longer lag behind it.
func TestUnresolvedCall(t *testing.T) {
	had, got := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")
	before := map[netip.Prefix]bool{cloud.HostPrefix(had): true}
	with := func(addrs ...netip.Addr) *known { return newKnown(facts{ID: "a", held: cloud.HostPrefixes(addrs)}) }
	for _, c := range []struct {
		name     string
		call     unresolvedCall
		k        *known
		seconds  int
		resolved bool
	}{
		{"effect visible", unresolvedCall{before: before, until: unix(15)}, with(had, got), 10, true},
		{"no effect yet", unresolvedCall{before: before, until: unix(15)}, with(had), 10, false},
		{"no effect", unresolvedCall{before: before, until: unix(15)}, with(had), 15, true},
		{"ENI gone", unresolvedCall{before: before, until: unix(15)}, nil, 10, true},
		{"new ENI not yet listed", unresolvedCall{made: true, until: unix(15)}, nil, 10, false},
		{"new ENI never listed", unresolvedCall{made: true, until: unix(15)}, nil, 15, true},
	} {
		l := newLookups(0)
		l.unresolved["a"] = c.call
		l.seen("a", c.k, unix(c.seconds))
		check.Equal(t, !l.blocksGrowth("a"), c.resolved, "%s: resolved", c.name)
		if again := l.at["a"]; c.resolved != again.IsZero() || !c.resolved && !again.Equal(unix(c.seconds+1)) {
			t.Errorf("%s: next lookup = %v", c.name, again)
		}
	}
}

// The more often a node reports that a link disappeared or returned, the longer EC2 is not asked about it. After the
// first flip, or a long time, EC2 is asked immediately.
func TestLinksThatFlip(t *testing.T) {
	for _, c := range []struct {
		name  string
		every int // seconds between flips
		most  int // lookups in 20 minutes
	}{
		{"each second", 1, 20},
		{"each 40 seconds", 40, 35},
		{"each 11 minutes", 660, 25},
	} {
		v := newView(time.Minute, 0)
		v.enis["a"] = newKnown(facts{ID: "a", Attachment: &cloud.Attachment{}})
		looks := 0
		for s := range 1200 {
			var missing []string
			if s/c.every%2 == 0 {
				missing = []string{"a", "b"} // b belongs to another node
			}
			v.missingLinks(missing, unix(s))
			id, ok := v.lookups.next(unix(s), false)
			if !ok && (s == 0 || s == 660 && c.every == 660) {
				t.Errorf("%s: no lookup after %d s", c.name, s)
			}
			if !ok {
				continue
			}
			looks++
			v.lookups.done(id)
			v.lookups.seen(id, v.enis[id], unix(s))
		}
		t.Logf("%s: %d lookups", c.name, looks)
		if flips := v.lookups.links.flips; looks > c.most || len(flips) != 1 {
			t.Errorf("%s: %d lookups, want at most %d; flips = %v, want one ENI", c.name, looks, c.most, flips)
		}
	}
}

// A hanging detachment is not polled every two seconds for hours.
func TestDetachPoll(t *testing.T) {
	for _, c := range []struct{ since, want time.Duration }{{0, 2 * second}, {8 * second, 2 * second}, {40 * second, 10 * second}, {time.Hour, time.Minute}} {
		k := known{replied: unix(0)}
		check.Equal(t, k.detachPoll(unix(0).Add(c.since)), c.want, "poll interval after %v", c.since)
	}
	check.Equal(t, (&known{}).detachPoll(unix(0)), 10*second, "poll interval of a foreign detachment")
}

const second = time.Second

func unix(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

func TestProbesArePaced(t *testing.T) {
	var p podProbe
	for _, step := range []struct {
		seconds, waiting int
		want             bool
	}{
		{0, 0, false},
		{1, 1, true}, // a pod started to wait
		{2, 1, false},
		{3, 2, false}, // another pod, too soon
		{10, 2, false},
		{11, 2, true}, // probe for that pod
		{30, 2, false},
		{31, 1, false}, // one pod stopped waiting
		{32, 2, true},  // and waits again
		{33, 3, false},
		{34, 0, false}, // no pod waits
		{50, 0, false},
	} {
		check.Equal(t, p.next(step.waiting, unix(step.seconds)), step.want, "probe at %d s with %d pods waiting", step.seconds, step.waiting)
	}
}

// The list of ENIs shows every change of the view, even if their number stays the same.
func TestListIsCurrent(t *testing.T) {
	v := newView(time.Minute, time.Second)
	at := func(index int) *cloud.Attachment {
		return &cloud.Attachment{ID: "attach", DeviceIndex: index, Status: "attached"}
	}
	for i, id := range []string{"a", "b"} {
		v.created(facts{ID: id, Attachment: at(1 + i)}, unix(0))
	}
	want := func(ids ...string) {
		t.Helper()
		var got []string
		for _, k := range v.list() {
			got = append(got, k.ID)
		}
		check.Equal(t, strings.Join(got, " "), strings.Join(ids, " "), "listed ENIs")
	}
	want("a", "b")
	v.attached(v.enis["a"], *at(3), unix(1))
	want("b", "a")
	v.forget("b")
	v.created(facts{ID: "c", Attachment: at(2)}, unix(2))
	want("c", "a")
	v.created(facts{ID: "a", Attachment: at(1)}, unix(3))
	want("a", "c")
	if v.list()[0] != v.enis["a"] {
		t.Error("list() has an ENI that was replaced")
	}
}
