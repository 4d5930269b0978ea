package nicplan_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

const given = "a2815656-76f7-46d4-9d11-057063db1a14"

var aMAC = mac.Addr{2, 0, 0, 0, 0, 1}

// wants is a NIC in network n, with a change.
func wants(edit ...func(*nicplan.Desired)) nicplan.Desired {
	w := nicplan.Desired{Cluster: "c", Port: vpcport.NewPort{Device: "d", NetworkID: "n", MAC: aMAC}}
	for _, e := range edit {
		e(&w)
	}
	return w
}

func at(host string) func(*nicplan.Desired) { return func(w *nicplan.Desired) { w.Port.Host = host } }
func over(w *nicplan.Desired)               { w.Over = true }
func held(w *nicplan.Desired)               { w.Held = true }
func ofUser(w *nicplan.Desired)             { w.Given, w.Tag, w.Port.MAC = given, "berth:c:shop", nil }
func anyMAC(w *nicplan.Desired)             { w.Port.MAC = nil }
func idempotent(w *nicplan.Desired)         { w.Idempotent = true }
func noNetwork(w *nicplan.Desired)          { w.Port.NetworkID = "" }
func inGroup(w *nicplan.Desired)            { w.Port.Groups = []string{"g", "h"} }

// port is the NIC's, with a change.
func port(id string, edit ...func(*vpcport.Port)) *vpcport.Port {
	p := &vpcport.Port{ID: id, NetworkID: "n", Device: "d", Owner: vpcport.Owner, MAC: aMAC}
	for _, e := range edit {
		e(p)
	}
	return p
}

func bound(host string) func(*vpcport.Port) {
	return func(p *vpcport.Port) { p.Host, p.Binding.Result = host, vpcport.Bound }
}
func failed(host string) func(*vpcport.Port) {
	return func(p *vpcport.Port) { p.Host, p.Binding.Result = host, vpcport.BindingFailed }
}
func active(p *vpcport.Port)   { p.Status = vpcport.StatusActive }
func free(p *vpcport.Port)     { p.Device, p.Owner = "", "" }
func newer(p *vpcport.Port)    { p.Revision = 2 }
func lent(p *vpcport.Port)     { p.Tags = []string{"mine", "berth:c:shop"} }
func taken(p *vpcport.Port)    { p.Device, p.Owner = "somebody", "compute:nova" }
func abroad(p *vpcport.Port)   { p.NetworkID = "m" }
func unmarked(p *vpcport.Port) { p.Device = "" } // by somebody

func warm(p *vpcport.Port)         { p.Device = vpcport.WarmDevice("c", "v", "1") }
func elsewhere(w *nicplan.Desired) { w.Held, w.Leaving = true, true }

// looked is what is known after a look that showed a port.
func looked(recorded string, p *vpcport.Port, extra ...string) nicplan.Observed {
	return nicplan.Observed{Kept: true, Recorded: recorded, Looked: true, Port: p, Extra: extra}
}

func TestNext(t *testing.T) {
	none, owner, device, host := "", vpcport.Owner, "d", "node-a"
	for _, tc := range []struct {
		name string
		w    nicplan.Desired
		h    nicplan.Observed
		want nicplan.Step
	}{
		{"first the finalizer", wants(), nicplan.Observed{}, nicplan.Step{Kind: nicplan.Keep}},
		{"no network yet", wants(noNetwork), nicplan.Restored(true, ""), nicplan.Step{Kind: nicplan.Rest}},
		{"a look before all else", wants(), nicplan.Restored(true, ""), nicplan.Step{Kind: nicplan.Look}},
		{"a look at what is recorded", wants(), nicplan.Restored(true, "p"), nicplan.Step{Kind: nicplan.Look}},
		{"none there", wants(), looked("", nil), nicplan.Step{Kind: nicplan.Create}},
		{"none there yet, maybe; the provider refuses a second", wants(), nicplan.Observed{Kept: true, Looked: true, Unclear: true}, nicplan.Step{Kind: nicplan.Create}},
		{"none there yet, maybe; nobody refuses a second", wants(anyMAC), nicplan.Observed{Kept: true, Looked: true, Unclear: true}, nicplan.Step{Kind: nicplan.Look}},
		{"none there yet, maybe; asked for again it is the same", wants(anyMAC, idempotent), nicplan.Observed{Kept: true, Looked: true, Unclear: true}, nicplan.Step{Kind: nicplan.Create}},
		{"refused for its MAC address", wants(), nicplan.Observed{Kept: true, Looked: true, Collided: true}, nicplan.Step{Kind: nicplan.Look}},
		{"a stranger has its MAC address", wants(), nicplan.Observed{Kept: true, Looked: true, Collided: true, Stranger: true}, nicplan.Step{Kind: nicplan.Rename}},
		{"deleted behind its back", wants(), looked("p", nil), nicplan.Step{Kind: nicplan.Create}},
		{"not recorded yet", wants(), looked("", port("p")), nicplan.Step{Kind: nicplan.Record, Port: "p"}},
		{"another is recorded", wants(), looked("q", port("p")), nicplan.Step{Kind: nicplan.Record, Port: "p"}},
		{"two were made", wants(), looked("p", port("p"), "q", "r"), nicplan.Step{Kind: nicplan.Delete, Port: "q"}},
		{"no pod yet", wants(), looked("p", port("p")), nicplan.Step{Kind: nicplan.Rest}},
		{"scheduled", wants(at("node-a")), looked("p", port("p")), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"bound", wants(at("node-a")), looked("p", port("p", bound("node-a"))), nicplan.Step{Kind: nicplan.Poll, Port: "p"}},
		{"active", wants(at("node-a")), looked("p", port("p", bound("node-a"), active)), nicplan.Step{Kind: nicplan.Rest}},
		{"binding failed", wants(at("node-a")), looked("p", port("p", failed("node-a"))), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"moved, and the old node has it", wants(at("node-a"), elsewhere), looked("p", port("p", bound("node-b"), active)), nicplan.Step{Kind: nicplan.Rest}},
		{"plugged, and somebody bound it elsewhere", wants(at("node-a"), held), looked("p", port("p", bound("node-b"), active)), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"somebody took its device off", wants(at("node-a")), looked("p", port("p", bound("node-a"), unmarked)), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"moved", wants(at("node-a")), looked("p", port("p", bound("node-b"), active)), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"waiting for its next pod", wants(), looked("p", port("p", bound("node-b"))), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Host: &none}}},
		{"other groups", wants(inGroup), looked("p", port("p", func(p *vpcport.Port) { p.Groups = []string{"h"} })), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Groups: []string{"g", "h"}}}},
		{"groups in another order", wants(inGroup), looked("p", port("p", func(p *vpcport.Port) { p.Groups = []string{"h", "g"} })), nicplan.Step{Kind: nicplan.Rest}},

		{"one was taken that was made ahead", wants(at("node-a")), looked("", port("p", bound("node-a"), active, warm)), nicplan.Step{Kind: nicplan.Record, Port: "p"}},
		{"it is recorded", wants(at("node-a")), looked("p", port("p", bound("node-a"), active, warm)), nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"over, and it was taken", wants(over), looked("", port("p", warm)), nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		{"over, and it is not marked yet", wants(over), looked("p", port("p", warm)), nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		{"a user names one that was made ahead", wants(ofUser), looked("", port(given, warm, lent)), nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.Conflict, Why: "port " + given + ` is in use by "berth:c:warm/v/1"`}},

		{"a user's port", wants(ofUser), looked("", port(given, free, lent)), nicplan.Step{Kind: nicplan.Change, Port: given, Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"a user's port, taken", wants(ofUser), looked("", port(given)), nicplan.Step{Kind: nicplan.Record, Port: given}},
		{"a user's port, in use", wants(ofUser), looked("", port(given, taken, lent)), nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.Conflict, Why: "port " + given + ` is in use by "somebody"`}},
		{"a user's port of elsewhere", wants(ofUser), looked("", port(given, abroad, free, lent)), nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.Invalid, Why: "port " + given + " is of network m, expected one of n"}},
		{"a user's port that is given to nobody", wants(ofUser), looked("", port(given, free)), nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.ReferenceGone, Why: "port " + given + " does not have the tag berth:c:shop, expected one by which its owner gives it to the namespace"}},
		{"a user's port, in use, that is given to nobody", wants(ofUser), looked("", port(given, taken)), nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.ReferenceGone, Why: "port " + given + " does not have the tag berth:c:shop, expected one by which its owner gives it to the namespace"}},
		{"a user's port that was taken, and lost its tag and its device", wants(ofUser), looked(given, port(given, free)), nicplan.Step{Kind: nicplan.Change, Port: given, Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"over, of a user's port that was never taken", wants(ofUser, over), looked("", port(given, unmarked)), nicplan.Step{Kind: nicplan.Forget}},
		{"a user's port that is not there", wants(ofUser), looked("", nil), nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.PortGone, Why: "there is no port " + given}},

		{"over before it began", wants(over), nicplan.Observed{}, nicplan.Step{Kind: nicplan.Rest}},
		{"over, and plugged", wants(over, held), looked("p", port("p")), nicplan.Step{Kind: nicplan.Rest}},
		{"over, and not looked at", wants(over), nicplan.Restored(true, "p"), nicplan.Step{Kind: nicplan.Look}},
		{"over, and it may come yet, asked for again or not", wants(over, anyMAC, idempotent), nicplan.Observed{Kept: true, Looked: true, Unclear: true}, nicplan.Step{Kind: nicplan.Look}},
		{"over, and it may come yet", wants(over), nicplan.Observed{Kept: true, Looked: true, Unclear: true}, nicplan.Step{Kind: nicplan.Look}},
		{"over", wants(over, at("node-a")), looked("p", port("p", bound("node-a"))), nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		{"over, with two", wants(over), looked("p", port("p"), "q"), nicplan.Step{Kind: nicplan.Delete, Port: "q"}},
		{"over, and somebody took its device off", wants(over), looked("p", port("p", unmarked)), nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		{"over, and somebody else's by now", wants(over), looked("p", port("p", taken)), nicplan.Step{Kind: nicplan.Forget}},
		{"over, and its owner is somebody else", wants(over), looked("p", port("p", func(p *vpcport.Port) { p.Device, p.Owner = "", "network:dhcp" })), nicplan.Step{Kind: nicplan.Forget}},
		{"over, and somebody took all marks off", wants(over), looked("p", port("p", free)), nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		{"over, of a user's port whose device somebody took off", wants(over, ofUser), looked(given, port(given, bound("node-a"), unmarked)), nicplan.Step{Kind: nicplan.Change, Port: given, Change: vpcport.Change{Device: &none, Owner: &none, Host: &none}}},
		{"over, and gone", wants(over), looked("p", nil), nicplan.Step{Kind: nicplan.Forget}},
		{"over, of a network that is not known", wants(over, noNetwork), looked("", nil), nicplan.Step{Kind: nicplan.Forget}},
		{"over, of a user's port", wants(over, ofUser), looked(given, port(given, bound("node-a"))), nicplan.Step{Kind: nicplan.Change, Port: given, Change: vpcport.Change{Device: &none, Owner: &none, Host: &none}}},
		{"over, of a user's port that is let go", wants(over, ofUser), looked(given, port(given, free)), nicplan.Step{Kind: nicplan.Forget}},
		{"over, of a user's port that somebody else took", wants(over, ofUser), looked(given, port(given, taken)), nicplan.Step{Kind: nicplan.Forget}},
		{"over, of a user's port that is not there", wants(over, ofUser), nicplan.Observed{Kept: true, Looked: true, Unclear: true}, nicplan.Step{Kind: nicplan.Forget}},
	} {
		if d := cmp.Diff(tc.want, nicplan.Next(tc.w, tc.h, nicplan.Constraints{}, nicplan.Attempts{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

// What a failure leaves unclear is looked at; what had no effect is not.
func TestAfterCall(t *testing.T) {
	refused := func(c vpcport.Class) error { return &vpcport.Error{Class: c} }
	create, change := nicplan.Step{Kind: nicplan.Create}, nicplan.Step{Kind: nicplan.Change, Port: "p"}
	for _, tc := range []struct {
		name string
		step nicplan.Step
		h    nicplan.Observed
		port *vpcport.Port
		err  error
		want nicplan.Observed
	}{
		{"made", create, nicplan.Observed{Kept: true, Looked: true, Collided: true, Unclear: true}, port("p"), nil, looked("", port("p"))},
		{"a lost reply", create, looked("", nil), nil, refused(vpcport.Transient), nicplan.Observed{Kept: true, Unclear: true}},
		{"an answer that cannot be", create, looked("", nil), nil, refused(vpcport.Bug), nicplan.Observed{Kept: true, Unclear: true}},
		{"no provider's error", create, looked("", nil), nil, errors.New("else"), nicplan.Observed{Kept: true, Unclear: true}},
		{"made, and not to be seen", create, looked("", nil), nil, refused(vpcport.Forbidden), nicplan.Observed{Kept: true, Looked: true, Unclear: true}},
		{"a MAC address that is taken", create, looked("", nil), nil, refused(vpcport.MACTaken), nicplan.Observed{Kept: true, Collided: true}},
		{"a full subnet", create, looked("", nil), nil, refused(vpcport.SubnetFull), looked("", nil)},
		{"a change that was lost", change, looked("p", port("p")), nil, refused(vpcport.Transient), nicplan.Observed{Kept: true, Recorded: "p", Port: port("p")}},
		{"a change of an old state", change, looked("p", port("p")), nil, refused(vpcport.Stale), nicplan.Observed{Kept: true, Recorded: "p", Port: port("p")}},
		{"changed", change, looked("p", port("p")), port("p", bound("a")), nil, looked("p", port("p", bound("a")))},
		{"its port deleted", nicplan.Step{Kind: nicplan.Delete, Port: "p"}, looked("p", port("p")), nil, nil, looked("p", nil)},
		{"polled", nicplan.Step{Kind: nicplan.Poll, Port: "p"}, looked("p", port("p")), port("p", active), nil, looked("p", port("p", active))},
		{"polled, and the listing is stale", nicplan.Step{Kind: nicplan.Poll, Port: "p"}, looked("p", port("p", newer)), port("p", active), nil, looked("p", port("p", newer))},
		{"another deleted", nicplan.Step{Kind: nicplan.Delete, Port: "q"}, looked("p", port("p"), "q"), nil, nil, looked("p", port("p"))},
	} {
		got := tc.h.After(wants(), tc.step, nicplan.Reply{Port: tc.port, Err: tc.err}, false)
		if len(got.Extra) == 0 {
			got.Extra = nil
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

func TestAfterLook(t *testing.T) {
	unclear := nicplan.Observed{Kept: true, Unclear: true, Collided: true}
	for _, tc := range []struct {
		name  string
		w     nicplan.Desired
		h     nicplan.Observed
		ports []vpcport.Port
		late  bool
		want  nicplan.Observed
	}{
		{"nothing, early", wants(), unclear, nil, false, nicplan.Observed{Kept: true, Unclear: true, Collided: true, Looked: true}},
		{"nothing, late", wants(), unclear, nil, true, nicplan.Observed{Kept: true, Collided: true, Looked: true}},
		{"its port", wants(), unclear, []vpcport.Port{*port("p")}, false, looked("", port("p"))},
		{"a stranger with its MAC address", wants(), unclear, []vpcport.Port{*port("s", taken)}, true, nicplan.Observed{Kept: true, Collided: true, Stranger: true, Looked: true}},
		{"its port, whose device somebody took off", wants(), nicplan.Observed{Kept: true, Recorded: "p"}, []vpcport.Port{*port("p", unmarked)}, true, looked("p", port("p", unmarked))},
		{"its port without any mark", wants(), nicplan.Observed{Kept: true, Recorded: "p"}, []vpcport.Port{*port("p", free)}, true, looked("p", port("p", free))},
		{"its port, which somebody else has by now", wants(), nicplan.Observed{Kept: true, Recorded: "p"}, []vpcport.Port{*port("p", taken)}, true, nicplan.Observed{Kept: true, Recorded: "p", Stranger: true, Looked: true}},
		{"one that is not recorded, by the mark and the MAC address that are left", wants(), unclear, []vpcport.Port{*port("p", unmarked)}, true, looked("", port("p", unmarked))},
		{"one with its MAC address, of nobody's", wants(), unclear, []vpcport.Port{*port("s", free)}, true, nicplan.Observed{Kept: true, Collided: true, Stranger: true, Looked: true}},
		{"one of its device in another network", wants(), nicplan.Observed{Kept: true}, []vpcport.Port{*port("p", abroad)}, true, looked("", port("p", abroad))},
		{"its port, and its network is not known any more", wants(over, noNetwork), nicplan.Observed{Kept: true}, []vpcport.Port{*port("p")}, true, looked("", port("p"))},
		{"the user's", wants(ofUser), nicplan.Observed{Kept: true}, []vpcport.Port{*port(given, free)}, true, looked("", port(given, free))},
		{"one that was gone", wants(), looked("p", port("p"), "q"), nil, true, looked("p", nil)},
	} {
		if d := cmp.Diff(tc.want, tc.h.After(tc.w, nicplan.Step{Kind: nicplan.Look}, nicplan.Reply{Ports: tc.ports}, tc.late)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

// Every operator keeps the same one of several ports.
func TestChoose(t *testing.T) {
	made := func(id string, second int) vpcport.Port {
		return vpcport.Port{ID: id, CreatedAt: time.Unix(int64(second), 0)}
	}
	ports := []vpcport.Port{made("c", 7), made("a", 8), made("b", 7)}
	for _, tc := range []struct {
		recorded string
		keep     string
		extra    []string
	}{
		{"", "b", []string{"c", "a"}},
		{"a", "a", []string{"b", "c"}},
		{"gone", "b", []string{"c", "a"}},
	} {
		keep, extra := nicplan.Choose(ports, tc.recorded)
		if keep.ID != tc.keep || !cmp.Equal(extra, tc.extra) {
			t.Errorf("with %q recorded: kept %s, not %v; want %s, %v", tc.recorded, keep.ID, extra, tc.keep, tc.extra)
		}
	}
	if keep, extra := nicplan.Choose(nil, "p"); keep != nil || extra != nil {
		t.Errorf("of none: %v, %v", keep, extra)
	}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// What forbids or delays a step: the VPC, the namespace's limits, the node, the pod's scheduling, and
// the calls before.
func TestNextWaits(t *testing.T) {
	const s, min = time.Second, time.Minute
	one, another := inGroup, func(d *nicplan.Desired) { d.Port.Groups = []string{"other"} }
	mine, bare := looked("p", port("p")), looked("", nil)
	unseen := nicplan.Restored(true, "p")
	after := func(kind nicplan.Kind, port string, wait time.Duration) nicplan.Step {
		return nicplan.Step{Kind: kind, Port: port, Waits: kind != nicplan.Rest, Wait: wait}
	}
	failed := func(class vpcport.Class, wait time.Duration, asked ...func(*nicplan.Desired)) nicplan.Attempts {
		return nicplan.Attempts{Failed: nicplan.Failure{Class: class, Message: "no", Until: noon.Add(wait)}, Asked: wants(asked...)}
	}
	gone := "there is no port " + given
	lost := nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.PortGone, Why: gone}
	lostAgain := lost
	lostAgain.Waits, lostAgain.Wait = true, min
	quiet := nicplan.Step{Kind: nicplan.Create, Waits: true, Wait: nicplan.Unscheduled, Quiet: true}
	for name, tt := range map[string]struct {
		d    nicplan.Desired
		o    nicplan.Observed
		c    nicplan.Constraints
		a    nicplan.Attempts
		want nicplan.Step
	}{
		"a VPC that is not open, of a new NIC":          {wants(), nicplan.Observed{}, nicplan.Constraints{Closed: true}, nicplan.Attempts{}, after(nicplan.Rest, "", 0)},
		"a VPC that is not open":                        {wants(), unseen, nicplan.Constraints{Closed: true}, nicplan.Attempts{}, after(nicplan.Look, "", 0)},
		"a VPC that is not open, of a NIC that is over": {wants(over), mine, nicplan.Constraints{Closed: true}, nicplan.Attempts{}, after(nicplan.Delete, "p", 0)},
		"the pod of a user's PodNIC":                    {wants(at("node-a")), mine, nicplan.Constraints{Claimed: true}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Claim}},
		"the same without a finalizer":                  {wants(), nicplan.Observed{}, nicplan.Constraints{Claimed: true}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Keep}},
		"the same of one that is over":                  {wants(over), mine, nicplan.Constraints{Claimed: true}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		"refused":                                       {wants(), bare, nicplan.Constraints{Refused: true}, nicplan.Attempts{}, after(nicplan.Create, "", 10*min)},
		"refused, and it has a port":                    {wants(inGroup), mine, nicplan.Constraints{Refused: true}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Change, Port: "p", Change: vpcport.Change{Groups: []string{"g", "h"}}}},
		"a full node":                                   {wants(), mine, nicplan.Constraints{NodeFull: true}, nicplan.Attempts{}, after(nicplan.Rest, "", nicplan.NodeFull)},
		"a node that has it until a moment":             {wants(over, held), mine, nicplan.Constraints{HeldUntil: noon.Add(min)}, nicplan.Attempts{}, after(nicplan.Rest, "", min)},
		"a node that had it until a moment":             {wants(over, held), mine, nicplan.Constraints{HeldUntil: noon}, nicplan.Attempts{}, after(nicplan.Rest, "", time.Millisecond)},
		"a node that has it for longer":                 {wants(held), mine, nicplan.Constraints{NodeFull: true, HeldUntil: noon.Add(min)}, nicplan.Attempts{}, after(nicplan.Rest, "", nicplan.NodeFull)},
		"a node that has it for less than a call waits": {wants(held), bare, nicplan.Constraints{HeldUntil: noon.Add(s)}, failed(vpcport.SubnetFull, min), after(nicplan.Create, "", s)},
		"a port that cools":                             {wants(over), mine, nicplan.Constraints{CoolUntil: noon.Add(30 * s)}, nicplan.Attempts{}, after(nicplan.Delete, "p", 30*s)},
		"a port that has cooled":                        {wants(over), mine, nicplan.Constraints{CoolUntil: noon}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		"another port does not cool":                    {wants(over), looked("p", port("p"), "q"), nicplan.Constraints{CoolUntil: noon.Add(s)}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Delete, Port: "q"}},
		"no host, which the provider needs":             {wants(), bare, nicplan.Constraints{NeedsHost: true, Warm: true}, nicplan.Attempts{}, after(nicplan.Create, "", 0)},
		"a host":                                        {wants(at("node-a")), bare, nicplan.Constraints{NeedsHost: true}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Create}},
		"a warm port, whatever failed before":           {wants(at("node-a")), bare, nicplan.Constraints{Warm: true}, failed(vpcport.SubnetFull, min), nicplan.Step{Kind: nicplan.Take}},
		"no node yet":                                   {wants(), bare, nicplan.Constraints{Scheduling: nicplan.Scheduling{Pending: true}}, nicplan.Attempts{}, quiet},
		"no node, for long":                             {wants(), bare, nicplan.Constraints{Scheduling: nicplan.Scheduling{Pending: true, Since: noon.Add(-s)}}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Create}},
		"a call that failed":                            {wants(), bare, nicplan.Constraints{}, failed(vpcport.SubnetFull, 5*s), after(nicplan.Create, "", 5*s)},
		"a call that failed a while ago":                {wants(), bare, nicplan.Constraints{}, failed(vpcport.SubnetFull, 0), nicplan.Step{Kind: nicplan.Create}},
		"a write waits for nothing":                     {wants(), looked("", port("p")), nicplan.Constraints{Closed: true, Refused: true}, failed(vpcport.Bug, min), nicplan.Step{Kind: nicplan.Record, Port: "p"}},
		"the same was invalid":                          {wants(one), bare, nicplan.Constraints{}, failed(vpcport.Invalid, min, one), after(nicplan.Create, "", min)},
		"what was invalid is another":                   {wants(another), bare, nicplan.Constraints{}, failed(vpcport.Invalid, min, one), nicplan.Step{Kind: nicplan.Create}},
		"another, and nothing was wrong with it":        {wants(another), bare, nicplan.Constraints{}, failed(vpcport.Transient, min, one), after(nicplan.Create, "", min)},
		"a failure of one that is over now":             {wants(over), mine, nicplan.Constraints{}, failed(vpcport.Bug, min), nicplan.Step{Kind: nicplan.Delete, Port: "p"}},
		"polled before":                                 {wants(at("node-a")), looked("p", port("p", bound("node-a"))), nicplan.Constraints{}, nicplan.Attempts{NotBefore: noon.Add(s)}, after(nicplan.Poll, "p", s)},
		"looked at in vain":                             {wants(), unseen, nicplan.Constraints{}, nicplan.Attempts{Looks: 1, NotBefore: noon.Add(s)}, after(nicplan.Look, "", s)},
		"looked at first":                               {wants(), unseen, nicplan.Constraints{}, nicplan.Attempts{NotBefore: noon.Add(s)}, nicplan.Step{Kind: nicplan.Look}},
		"impossible":                                    {wants(ofUser), bare, nicplan.Constraints{}, failed(vpcport.Bug, min), lost},
		"impossible, as was said":                       {wants(ofUser), bare, nicplan.Constraints{}, nicplan.Attempts{Failed: nicplan.Failure{Message: gone, Until: noon.Add(min)}}, lostAgain},
		"impossible, as was said a while ago":           {wants(ofUser), bare, nicplan.Constraints{}, nicplan.Attempts{Failed: nicplan.Failure{Message: gone, Until: noon}}, lost},
		"a user's port that another PodNIC has":         {wants(ofUser), looked("", port(given, taken, lent)), nicplan.Constraints{UsedBy: "shop/db"}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.Conflict, Why: "port " + given + " is in use by PodNIC shop/db"}},
		"a user's port that is given to nobody":         {wants(ofUser), looked("", port(given, taken)), nicplan.Constraints{UsedBy: "shop/db"}, nicplan.Attempts{}, nicplan.Step{Kind: nicplan.Impossible, Class: vpcport.ReferenceGone, Why: "port " + given + " does not have the tag berth:c:shop, expected one by which its owner gives it to the namespace"}},
	} {
		tt.c.Now = noon
		if d := cmp.Diff(tt.want, nicplan.Next(tt.d, tt.o, tt.c, tt.a)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// A new port waits for its pod's node as long as the scheduler is at work.
func TestScheduling(t *testing.T) {
	const first, most = nicplan.Unscheduled, nicplan.UnscheduledMost
	for _, tt := range []struct {
		name          string
		placed        time.Duration // after noon; below 0: never
		now           time.Duration
		atLeast, most time.Duration
	}{
		{"at first", -1, 0, first, first},
		{"nobody gets a node", -1, first, 0, 0},
		{"others got one before", 0, first / 2, first / 2, first / 2},
		{"others get one", first, first, first, first},
		{"others get one for long", 20 * time.Second, 20 * time.Second, first, 10 * time.Second},
		{"others got one, and no more", 20 * time.Second, 20*time.Second + first, 0, 0},
		{"for longer than a pod waits", most - time.Millisecond, most - time.Millisecond, time.Millisecond, time.Millisecond},
		{"it waited long enough", most, most, 0, 0},
	} {
		scheduling := nicplan.Scheduling{Pending: true, Since: noon}
		if tt.placed >= 0 {
			scheduling.Placed = noon.Add(tt.placed)
		}
		got := nicplan.Next(wants(), looked("", nil), nicplan.Constraints{Now: noon.Add(tt.now), Scheduling: scheduling}, nicplan.Attempts{})
		if got.Kind != nicplan.Create || got.Wait < tt.atLeast || got.Wait > tt.most || got.Waits != (got.Wait > 0) {
			t.Errorf("%s: %+v, want %v to %v", tt.name, got, tt.atLeast, tt.most)
		}
	}
}
