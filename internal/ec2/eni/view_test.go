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

// at returns an ENI that is attached to the node at a device index.
func at(e cloud.ENI, index int, id string) cloud.ENI {
	e.Attachment = &cloud.Attachment{ID: id, InstanceID: "i-1", DeviceIndex: index, Status: "attached"}
	return e
}

// A device index, like a MAC address, belongs to one ENI: the one that had it.
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
		{"each its own", []cloud.ENI{one, two, three}, "", "eni-1"},
		{"another at that of the second", []cloud.ENI{one, two, at(three, 1, "a-3")}, "eni-3", "eni-1"},
		{"the second at that of the third", []cloud.ENI{one, at(two, 2, "a-2"), three}, "eni-2", "eni-1"},
		{"another at that of the primary", []cloud.ENI{one, two, at(three, 0, "a-3")}, "eni-3", "eni-1"},
		{"of another network card", []cloud.ENI{one, two, card}, "", "eni-1"},
		{"one that leaves", []cloud.ENI{one, two, leaving}, "", "eni-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 20 { // maps have no order
				v := newView(0, 0)
				v.observed(0, one, two, three)
				v.observed(1, tt.listed...)
				for id, k := range v.enis {
					check.Equal(t, k.ambiguous, id == tt.double, "%s is double", id)
				}
				if k, ok := v.primary(); !ok || k.ID != tt.primary {
					t.Fatalf("the primary is %v, want %s", k, tt.primary)
				}
			}
		})
	}
}

// The attachment that is detached is the one that a listing has: a reply may name another's.
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
		{"one that the listing does not have yet", at(listed, 1, "a-2"), eniOf(2, "10.0.0.5"), "a-2"},
		{"another index, as of before", at(listed, 1, "a-2"), at(listed, 3, "a-old"), "a-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(time.Minute, 0)
			k := newKnown(factsOf(tt.reply, "test"))
			k.replied = unix(1)
			v.enis[k.ID] = k
			v.observed(2, tt.listed)
			if got := v.enis["eni-2"].Attachment; got == nil || got.ID != tt.want || got.DeviceIndex != 1 {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}

// ENIs that are attached to another instance, or were created for one, are not this node's.
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
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDisputes(t *testing.T) {
	with := func(e cloud.ENI, p ...string) cloud.ENI { e.Prefixes = prefixes(p...); return e }
	for _, tt := range []struct {
		name        string
		before, now []cloud.ENI
		want        string // assignments that are not believed
	}{
		{"all apart", nil, []cloud.ENI{with(eniOf(1, "10.0.0.4", "10.0.0.5"), "10.0.1.0/28"), with(eniOf(2, "10.0.0.6", "10.0.0.7"), "10.0.1.16/28")}, "[]"},
		{"of two, nobody had it", nil, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.9"), eniOf(2, "10.0.0.6", "10.0.0.9")}, "[10.0.0.9/32 eni-1 10.0.0.9/32 eni-2]"},
		{"of two, the second had it", []cloud.ENI{eniOf(2, "10.0.0.6", "10.0.0.9")}, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.9"), eniOf(2, "10.0.0.6", "10.0.0.9")}, "[10.0.0.9/32 eni-1]"},
		{"its own primary", nil, []cloud.ENI{eniOf(1, "10.0.0.4", "10.0.0.4", "10.0.0.5")}, "[10.0.0.4/32 eni-1]"},
		{"another's primary", []cloud.ENI{eniOf(2, "10.0.0.6", "10.0.0.4")}, []cloud.ENI{eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.6", "10.0.0.4")}, "[10.0.0.4/32 eni-2]"},
		{"a primary within a prefix", nil, []cloud.ENI{eniOf(1, "10.0.0.4"), with(eniOf(2, "10.0.0.20"), "10.0.0.0/28")}, "[10.0.0.0/28 eni-2]"},
		{"an address within a prefix that was there", []cloud.ENI{with(eniOf(2, "10.0.0.6"), "10.0.1.0/28")},
			[]cloud.ENI{eniOf(1, "10.0.0.4", "10.0.1.3"), with(eniOf(2, "10.0.0.6"), "10.0.1.0/28")}, "[10.0.1.3/32 eni-1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, d := range disputes(all(tt.before...), all(tt.now...)) {
				got = append(got, d.prefix.String(), d.eni)
			}
			check.Equal(t, fmt.Sprint(got), tt.want, "got %v", got)
		})
	}
}

func TestDoubles(t *testing.T) {
	one, two, three := eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.5"), eniOf(3, "10.0.0.6")
	if got := doubles(nil, all(one, two, three)); got != nil {
		t.Errorf("nothing is double, got %v", got)
	}
	mac := two
	mac.MAC = one.MAC
	check.Equal(t, doubles(all(one), all(one, mac, three)), []string{"eni-2"}, "the MAC of eni-1 again")
	check.Equal(t, doubles(nil, all(one, mac, three)), []string{"eni-1", "eni-2"}, "both are new")
	address := three
	address.Primary = one.Primary
	check.Equal(t, doubles(all(one), all(one, two, address)), []string{"eni-3"}, "the primary address of eni-1 again")
	bare := cloud.ENI{ID: "eni-4"} // such as EFA-only ones
	if got := doubles(nil, all(bare, cloud.ENI{ID: "eni-5"})); got != nil {
		t.Errorf("without addresses: got %v", got)
	}
}

// An ENI keeps its MAC and primary address for life, whatever a listing says.
func TestListingChangesNoENIsIdentity(t *testing.T) {
	v := newView(0, 0)
	was := eniOf(1, "10.0.0.4", "10.0.0.5")
	v.observed(0, was)
	e := eniOf(1, "10.0.0.99", "10.0.0.5", "10.0.0.5")
	e.MAC = net.HardwareAddr{2, 0, 0, 0, 9, 9}
	v.observed(1, e)
	k := v.enis["eni-1"]
	if k.MAC.String() != was.MAC.String() || k.Primary != was.Primary || !slices.Equal(k.held, cloud.HostPrefixes(was.Addresses)) {
		t.Errorf("got %+v", k.facts)
	}
	check.Equal(t, len(v.contradictions), 1, "contradictions %v", v.contradictions)
	v.observed(2, was)
	check.Equal(t, len(v.contradictions), 0, "it is listed as it is, and still: %v", v.contradictions)
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
		"made by Berth":                 {made(func(*cloud.ENI) {}), true},
		"without a description":         {made(func(e *cloud.ENI) { e.Description = "" }), true},
		"detached":                      {made(func(e *cloud.ENI) { e.Attachment = nil }), true},
		"detached, another description": {made(func(e *cloud.ENI) { e.Attachment, e.Description = nil, "database" }), false},
		"of another cluster":            {made(func(e *cloud.ENI) { e.Tags[TagCluster] = "other" }), false},
		"of another owner":              {made(func(e *cloud.ENI) { e.Tags[TagOwner] = "somebody" }), false},
		"unmanaged":                     {made(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "true" }), false},
		"not unmanaged":                 {made(func(e *cloud.ENI) { e.Tags[TagUnmanaged] = "False" }), true},
		"no ordinary interface":         {made(func(e *cloud.ENI) { e.Type = "efa" }), false},
		"on another network card":       {made(func(e *cloud.ENI) { e.Attachment.NetworkCard = 1 }), false},
		"a trunk":                       {made(func(e *cloud.ENI) { e.Type = cloud.InterfaceTrunk }), true},
		"a detached trunk":              {made(func(e *cloud.ENI) { e.Type, e.Attachment = cloud.InterfaceTrunk, nil }), true},
		"another's trunk":               {made(func(e *cloud.ENI) { e.Type, e.Description = cloud.InterfaceTrunk, "aws-k8s-trunk-eni" }), false},
		"a branch":                      {made(func(e *cloud.ENI) { e.Type, e.Attachment, e.Status = cloud.InterfaceBranch, nil, "in-use" }), false},
		"a branch by its status alone":  {made(func(e *cloud.ENI) { e.Attachment, e.Status = nil, "in-use" }), false},
		"to be a branch":                {made(func(e *cloud.ENI) { e.Attachment, e.Tags[TagNIC] = nil, "uid" }), false},
		"just made":                     {made(func(e *cloud.ENI) { e.Attachment, e.Status = nil, "pending" }), true},
		"the primary":                   {at(eniOf(1, "10.0.0.4"), 0, "a-1"), true},
	} {
		check.Equal(t, factsOf(c.e, "test").ours(), c.want, "%s", name)
	}
}

// A published ENI that was stored is recognised by the next process.
func TestStoredENI(t *testing.T) {
	e := ENI{ID: "eni-2", DeviceIndex: 2, PrimaryIPv4: addrs("10.0.0.5")[0], Addresses: addrs("10.0.0.5", "10.0.0.7"), Prefixes: prefixes("10.0.1.0/28"), IPv6: addrs("2001:db8::1")}
	f := e.facts("i-1")
	if !f.ours() || f.index() != 2 || primary(f.Attachment) {
		t.Errorf("got %+v", f)
	}
	again := ENI{ID: f.ID, DeviceIndex: f.index(), PrimaryIPv4: f.Primary}
	again.Addresses, again.Prefixes, again.IPv6, again.IPv6Prefixes = split(f.held)
	e.Addresses = e.Addresses[1:] // its own address is no address that EC2 lists for pods
	if !again.Equal(e) {
		t.Errorf("got %+v, want %+v", again, e)
	}
}

func TestInvalidInventoryIsRejected(t *testing.T) {
	for _, c := range []struct{ data, word string }{
		{`{`, "inventory"},
		{`{}`, "instanceID"},
		{`{"instanceID":"i-1","enis":[{"id":"a"},{"id":"a"}]}`, "each once"},
		{`{"instanceID":"i-1","enis":[{"id":"a","deviceIndex":-1}]}`, "deviceIndex -1"},
		{`{"instanceID":"i-1","enis":[{"id":"a","mac":"zz"}]}`, "mac"},
		{`{"instanceID":"i-1","enis":[{"id":"a","addresses":[""]}]}`, "no address"},
		{`{"instanceID":"i-1","enis":[{"id":"a","addresses":["10.0.0.1"]},{"id":"b","addresses":["10.0.0.1"]}]}`, "is of a and of b"},
		{`{"instanceID":"i-1","enis":[{"id":"a","prefixes":["10.0.0.1/28"]}]}`, "aligned"},
		{`{"instanceID":"i-1","enis":[{"id":"a"}],"leaving":[{"eni":"a"}]}`, "leaving"},
		{`{"instanceID":"i-1","releasing":[{"eni":"a"}]}`, "releasing"},
	} {
		if _, err := DecodeInventory([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: error %v does not say %q", c.data, err, c.word)
		}
	}
}

// What is accepted can be written, read again and used.
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
			t.Fatalf("accepted %s, cannot write it: %v", data, err)
		}
		again, err := DecodeInventory(out)
		if err != nil {
			t.Fatalf("wrote %s, cannot read it: %v", out, err)
		}
		if len(again.ENIs) != len(inv.ENIs) {
			t.Fatalf("%d ENIs became %d", len(inv.ENIs), len(again.ENIs))
		}
		for i := range inv.ENIs {
			if !inv.ENIs[i].Equal(again.ENIs[i]) {
				t.Fatalf("%+v became %+v", inv.ENIs[i], again.ENIs[i])
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
		t.Errorf("any: %q", id)
	}
	if id, ok := l.next(unix(10), true); id != "a" || !ok {
		t.Errorf("one that growth waits for: %q", id)
	}
	l.forget("a")
	if id, ok := l.next(unix(10), true); ok {
		t.Errorf("not due yet: %q", id)
	}
}

// An unresolved call is resolved by its effect, or once no listing can trail it.
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
		{"an effect", unresolvedCall{before: before, until: unix(15)}, with(had, got), 10, true},
		{"none yet", unresolvedCall{before: before, until: unix(15)}, with(had), 10, false},
		{"none for good", unresolvedCall{before: before, until: unix(15)}, with(had), 15, true},
		{"the ENI is gone", unresolvedCall{before: before, until: unix(15)}, nil, 10, true},
		{"a new ENI is not listed yet", unresolvedCall{made: true, until: unix(15)}, nil, 10, false},
		{"and never will be", unresolvedCall{made: true, until: unix(15)}, nil, 15, true},
	} {
		l := newLookups(0)
		l.unresolved["a"] = c.call
		l.seen("a", c.k, unix(c.seconds))
		check.Equal(t, !l.blocksGrowth("a"), c.resolved, "%s: resolved", c.name)
		if again := l.at["a"]; c.resolved != again.IsZero() || !c.resolved && !again.Equal(unix(c.seconds+1)) {
			t.Errorf("%s: described again at %v", c.name, again)
		}
	}
}

// The more often a node says that a link went or came, the longer EC2 is not asked about it. After the
// first flip, or a long time, it is asked at once.
func TestLinksThatFlip(t *testing.T) {
	for _, c := range []struct {
		name  string
		every int // seconds between flips
		most  int // looks in 20 minutes
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
				missing = []string{"a", "b"} // b is not the node's
			}
			v.missingLinks(missing, unix(s))
			id, ok := v.lookups.next(unix(s), false)
			if !ok && (s == 0 || s == 660 && c.every == 660) {
				t.Errorf("%s: no look after %d s", c.name, s)
			}
			if !ok {
				continue
			}
			looks++
			v.lookups.done(id)
			v.lookups.seen(id, v.enis[id], unix(s))
		}
		t.Logf("%s: %d looks", c.name, looks)
		if flips := v.lookups.links.flips; looks > c.most || len(flips) != 1 {
			t.Errorf("%s: %d looks, want %d at most; flips of %v", c.name, looks, c.most, flips)
		}
	}
}

// A detachment that hangs is not polled every two seconds for hours.
func TestDetachPoll(t *testing.T) {
	for _, c := range []struct{ since, want time.Duration }{{0, 2 * second}, {8 * second, 2 * second}, {40 * second, 10 * second}, {time.Hour, time.Minute}} {
		k := known{replied: unix(0)}
		check.Equal(t, k.detachPoll(unix(0).Add(c.since)), c.want, "after %v", c.since)
	}
	check.Equal(t, (&known{}).detachPoll(unix(0)), 10*second, "begun by someone else")
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
		{1, 1, true}, // a pod came
		{2, 1, false},
		{3, 2, false}, // another, too soon
		{10, 2, false},
		{11, 2, true}, // for that one
		{30, 2, false},
		{31, 1, false}, // one went
		{32, 2, true},  // and tries again
		{33, 3, false},
		{34, 0, false}, // nobody waits any more
		{50, 0, false},
	} {
		check.Equal(t, p.next(step.waiting, unix(step.seconds)), step.want, "at %d s with %d waiting", step.seconds, step.waiting)
	}
}
