package plan_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/operator/vpcport/plan"
	"github.com/berthnet/berth/internal/vpcport"
)

const given = "a2815656-76f7-46d4-9d11-057063db1a14"

var aMAC = mac.Addr{2, 0, 0, 0, 0, 1}

// wants is a NIC in network n, with a change.
func wants(edit ...func(*plan.Want)) plan.Want {
	w := plan.Want{Cluster: "c", Device: "d", Network: "n", MAC: aMAC}
	for _, e := range edit {
		e(&w)
	}
	return w
}

func at(host string) func(*plan.Want) { return func(w *plan.Want) { w.Host = host } }
func over(w *plan.Want)               { w.Over = true }
func held(w *plan.Want)               { w.Held = true }
func ofUser(w *plan.Want)             { w.Given, w.Tag, w.MAC = given, "berth:c:shop", nil }
func anyMAC(w *plan.Want)             { w.MAC = nil }
func idempotent(w *plan.Want)         { w.Idempotent = true }
func noNetwork(w *plan.Want)          { w.Network = "" }
func inGroup(w *plan.Want)            { w.Groups = []string{"g", "h"} }

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
func lent(p *vpcport.Port)     { p.Tags = []string{"mine", "berth:c:shop"} }
func taken(p *vpcport.Port)    { p.Device, p.Owner = "somebody", "compute:nova" }
func abroad(p *vpcport.Port)   { p.NetworkID = "m" }
func unmarked(p *vpcport.Port) { p.Device = "" } // by somebody

func warm(p *vpcport.Port)   { p.Device = vpcport.WarmDevice("c", "v", "1") }
func elsewhere(w *plan.Want) { w.Held, w.Leaving = true, true }

// looked is what is known after a look that showed a port.
func looked(recorded string, p *vpcport.Port, extra ...string) plan.Have {
	return plan.Have{Kept: true, Recorded: recorded, Looked: true, Port: p, Extra: extra}
}

func TestNext(t *testing.T) {
	none, owner, device, host := "", vpcport.Owner, "d", "node-a"
	for _, tc := range []struct {
		name string
		w    plan.Want
		h    plan.Have
		want plan.Step
	}{
		{"first the finalizer", wants(), plan.Have{}, plan.Step{Kind: plan.Keep}},
		{"no network yet", wants(noNetwork), plan.Restored(true, ""), plan.Step{Kind: plan.Rest}},
		{"a look before all else", wants(), plan.Restored(true, ""), plan.Step{Kind: plan.Look}},
		{"a look at what is recorded", wants(), plan.Restored(true, "p"), plan.Step{Kind: plan.Look}},
		{"none there", wants(), looked("", nil), plan.Step{Kind: plan.Create}},
		{"none there yet, maybe; the provider refuses a second", wants(), plan.Have{Kept: true, Looked: true, Unclear: true}, plan.Step{Kind: plan.Create}},
		{"none there yet, maybe; nobody refuses a second", wants(anyMAC), plan.Have{Kept: true, Looked: true, Unclear: true}, plan.Step{Kind: plan.Look}},
		{"none there yet, maybe; asked for again it is the same", wants(anyMAC, idempotent), plan.Have{Kept: true, Looked: true, Unclear: true}, plan.Step{Kind: plan.Create}},
		{"refused for its MAC address", wants(), plan.Have{Kept: true, Looked: true, Collided: true}, plan.Step{Kind: plan.Look}},
		{"a stranger has its MAC address", wants(), plan.Have{Kept: true, Looked: true, Collided: true, Stranger: true}, plan.Step{Kind: plan.Rename}},
		{"deleted behind its back", wants(), looked("p", nil), plan.Step{Kind: plan.Create}},
		{"not recorded yet", wants(), looked("", port("p")), plan.Step{Kind: plan.Record, Port: "p"}},
		{"another is recorded", wants(), looked("q", port("p")), plan.Step{Kind: plan.Record, Port: "p"}},
		{"two were made", wants(), looked("p", port("p"), "q", "r"), plan.Step{Kind: plan.Delete, Port: "q"}},
		{"no pod yet", wants(), looked("p", port("p")), plan.Step{Kind: plan.Rest}},
		{"scheduled", wants(at("node-a")), looked("p", port("p")), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"bound", wants(at("node-a")), looked("p", port("p", bound("node-a"))), plan.Step{Kind: plan.Poll, Port: "p"}},
		{"active", wants(at("node-a")), looked("p", port("p", bound("node-a"), active)), plan.Step{Kind: plan.Rest}},
		{"binding failed", wants(at("node-a")), looked("p", port("p", failed("node-a"))), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"moved, and the old node has it", wants(at("node-a"), elsewhere), looked("p", port("p", bound("node-b"), active)), plan.Step{Kind: plan.Rest}},
		{"plugged, and somebody bound it elsewhere", wants(at("node-a"), held), looked("p", port("p", bound("node-b"), active)), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"somebody took its device off", wants(at("node-a")), looked("p", port("p", bound("node-a"), unmarked)), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"moved", wants(at("node-a")), looked("p", port("p", bound("node-b"), active)), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Host: &host}}},
		{"waiting for its next pod", wants(), looked("p", port("p", bound("node-b"))), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Host: &none}}},
		{"other groups", wants(inGroup), looked("p", port("p", func(p *vpcport.Port) { p.Groups = []string{"h"} })), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Groups: []string{"g", "h"}}}},
		{"groups in another order", wants(inGroup), looked("p", port("p", func(p *vpcport.Port) { p.Groups = []string{"h", "g"} })), plan.Step{Kind: plan.Rest}},

		{"one was taken that was made ahead", wants(at("node-a")), looked("", port("p", bound("node-a"), active, warm)), plan.Step{Kind: plan.Record, Port: "p"}},
		{"it is recorded", wants(at("node-a")), looked("p", port("p", bound("node-a"), active, warm)), plan.Step{Kind: plan.Change, Port: "p", Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"over, and it was taken", wants(over), looked("", port("p", warm)), plan.Step{Kind: plan.Delete, Port: "p"}},
		{"over, and it is not marked yet", wants(over), looked("p", port("p", warm)), plan.Step{Kind: plan.Delete, Port: "p"}},
		{"a user names one that was made ahead", wants(ofUser), looked("", port(given, warm, lent)), plan.Step{Kind: plan.Impossible, Class: vpcport.Conflict, Why: "port " + given + ` is in use by "berth:c:warm/v/1"`}},

		{"a user's port", wants(ofUser), looked("", port(given, free, lent)), plan.Step{Kind: plan.Change, Port: given, Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"a user's port, taken", wants(ofUser), looked("", port(given)), plan.Step{Kind: plan.Record, Port: given}},
		{"a user's port, in use", wants(ofUser), looked("", port(given, taken, lent)), plan.Step{Kind: plan.Impossible, Class: vpcport.Conflict, Why: "port " + given + ` is in use by "somebody"`}},
		{"a user's port of elsewhere", wants(ofUser), looked("", port(given, abroad, free, lent)), plan.Step{Kind: plan.Impossible, Class: vpcport.Invalid, Why: "port " + given + " is of network m, expected one of n"}},
		{"a user's port that is given to nobody", wants(ofUser), looked("", port(given, free)), plan.Step{Kind: plan.Impossible, Class: vpcport.ReferenceGone, Why: "port " + given + " does not have the tag berth:c:shop, expected one by which its owner gives it to the namespace"}},
		{"a user's port, in use, that is given to nobody", wants(ofUser), looked("", port(given, taken)), plan.Step{Kind: plan.Impossible, Class: vpcport.ReferenceGone, Why: "port " + given + " does not have the tag berth:c:shop, expected one by which its owner gives it to the namespace"}},
		{"a user's port that was taken, and lost its tag and its device", wants(ofUser), looked(given, port(given, free)), plan.Step{Kind: plan.Change, Port: given, Change: vpcport.Change{Device: &device, Owner: &owner}}},
		{"over, of a user's port that was never taken", wants(ofUser, over), looked("", port(given, unmarked)), plan.Step{Kind: plan.Forget}},
		{"a user's port that is not there", wants(ofUser), looked("", nil), plan.Step{Kind: plan.Impossible, Class: vpcport.PortGone, Why: "there is no port " + given}},

		{"over before it began", wants(over), plan.Have{}, plan.Step{Kind: plan.Rest}},
		{"over, and plugged", wants(over, held), looked("p", port("p")), plan.Step{Kind: plan.Rest}},
		{"over, and not looked at", wants(over), plan.Restored(true, "p"), plan.Step{Kind: plan.Look}},
		{"over, and it may come yet, asked for again or not", wants(over, anyMAC, idempotent), plan.Have{Kept: true, Looked: true, Unclear: true}, plan.Step{Kind: plan.Look}},
		{"over, and it may come yet", wants(over), plan.Have{Kept: true, Looked: true, Unclear: true}, plan.Step{Kind: plan.Look}},
		{"over", wants(over, at("node-a")), looked("p", port("p", bound("node-a"))), plan.Step{Kind: plan.Delete, Port: "p"}},
		{"over, with two", wants(over), looked("p", port("p"), "q"), plan.Step{Kind: plan.Delete, Port: "q"}},
		{"over, and somebody took its device off", wants(over), looked("p", port("p", unmarked)), plan.Step{Kind: plan.Delete, Port: "p"}},
		{"over, and somebody else's by now", wants(over), looked("p", port("p", taken)), plan.Step{Kind: plan.Forget}},
		{"over, and its owner is somebody else", wants(over), looked("p", port("p", func(p *vpcport.Port) { p.Device, p.Owner = "", "network:dhcp" })), plan.Step{Kind: plan.Forget}},
		{"over, and somebody took all marks off", wants(over), looked("p", port("p", free)), plan.Step{Kind: plan.Delete, Port: "p"}},
		{"over, of a user's port whose device somebody took off", wants(over, ofUser), looked(given, port(given, bound("node-a"), unmarked)), plan.Step{Kind: plan.Change, Port: given, Change: vpcport.Change{Device: &none, Owner: &none, Host: &none}}},
		{"over, and gone", wants(over), looked("p", nil), plan.Step{Kind: plan.Forget}},
		{"over, of a network that is not known", wants(over, noNetwork), looked("", nil), plan.Step{Kind: plan.Forget}},
		{"over, of a user's port", wants(over, ofUser), looked(given, port(given, bound("node-a"))), plan.Step{Kind: plan.Change, Port: given, Change: vpcport.Change{Device: &none, Owner: &none, Host: &none}}},
		{"over, of a user's port that is let go", wants(over, ofUser), looked(given, port(given, free)), plan.Step{Kind: plan.Forget}},
		{"over, of a user's port that somebody else took", wants(over, ofUser), looked(given, port(given, taken)), plan.Step{Kind: plan.Forget}},
		{"over, of a user's port that is not there", wants(over, ofUser), plan.Have{Kept: true, Looked: true, Unclear: true}, plan.Step{Kind: plan.Forget}},
	} {
		if d := cmp.Diff(tc.want, plan.Next(tc.w, tc.h)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

// What a failure leaves unclear is looked at; what had no effect is not.
func TestReplied(t *testing.T) {
	refused := func(c vpcport.Class) error { return &vpcport.Error{Class: c} }
	create, change := plan.Step{Kind: plan.Create}, plan.Step{Kind: plan.Change, Port: "p"}
	for _, tc := range []struct {
		name string
		step plan.Step
		h    plan.Have
		port *vpcport.Port
		err  error
		want plan.Have
	}{
		{"made", create, plan.Have{Kept: true, Looked: true, Collided: true, Unclear: true}, port("p"), nil, looked("", port("p"))},
		{"a lost reply", create, looked("", nil), nil, refused(vpcport.Transient), plan.Have{Kept: true, Unclear: true}},
		{"an answer that cannot be", create, looked("", nil), nil, refused(vpcport.Bug), plan.Have{Kept: true, Unclear: true}},
		{"no provider's error", create, looked("", nil), nil, errors.New("else"), plan.Have{Kept: true, Unclear: true}},
		{"made, and not to be seen", create, looked("", nil), nil, refused(vpcport.Forbidden), plan.Have{Kept: true, Looked: true, Unclear: true}},
		{"a MAC address that is taken", create, looked("", nil), nil, refused(vpcport.MACTaken), plan.Have{Kept: true, Collided: true}},
		{"a full subnet", create, looked("", nil), nil, refused(vpcport.SubnetFull), looked("", nil)},
		{"a change that was lost", change, looked("p", port("p")), nil, refused(vpcport.Transient), plan.Have{Kept: true, Recorded: "p", Port: port("p")}},
		{"a change of an old state", change, looked("p", port("p")), nil, refused(vpcport.Stale), plan.Have{Kept: true, Recorded: "p", Port: port("p")}},
		{"changed", change, looked("p", port("p")), port("p", bound("a")), nil, looked("p", port("p", bound("a")))},
		{"its port deleted", plan.Step{Kind: plan.Delete, Port: "p"}, looked("p", port("p")), nil, nil, looked("p", nil)},
		{"another deleted", plan.Step{Kind: plan.Delete, Port: "q"}, looked("p", port("p"), "q"), nil, nil, looked("p", port("p"))},
	} {
		got := tc.h.Replied(tc.step, tc.port, tc.err)
		if len(got.Extra) == 0 {
			got.Extra = nil
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

func TestSeen(t *testing.T) {
	unclear := plan.Have{Kept: true, Unclear: true, Collided: true}
	for _, tc := range []struct {
		name  string
		w     plan.Want
		h     plan.Have
		ports []vpcport.Port
		late  bool
		want  plan.Have
	}{
		{"nothing, early", wants(), unclear, nil, false, plan.Have{Kept: true, Unclear: true, Collided: true, Looked: true}},
		{"nothing, late", wants(), unclear, nil, true, plan.Have{Kept: true, Collided: true, Looked: true}},
		{"its port", wants(), unclear, []vpcport.Port{*port("p")}, false, looked("", port("p"))},
		{"a stranger with its MAC address", wants(), unclear, []vpcport.Port{*port("s", taken)}, true, plan.Have{Kept: true, Collided: true, Stranger: true, Looked: true}},
		{"its port, whose device somebody took off", wants(), plan.Have{Kept: true, Recorded: "p"}, []vpcport.Port{*port("p", unmarked)}, true, looked("p", port("p", unmarked))},
		{"its port without any mark", wants(), plan.Have{Kept: true, Recorded: "p"}, []vpcport.Port{*port("p", free)}, true, looked("p", port("p", free))},
		{"its port, which somebody else has by now", wants(), plan.Have{Kept: true, Recorded: "p"}, []vpcport.Port{*port("p", taken)}, true, plan.Have{Kept: true, Recorded: "p", Stranger: true, Looked: true}},
		{"one that is not recorded, by the mark and the MAC address that are left", wants(), unclear, []vpcport.Port{*port("p", unmarked)}, true, looked("", port("p", unmarked))},
		{"one with its MAC address, of nobody's", wants(), unclear, []vpcport.Port{*port("s", free)}, true, plan.Have{Kept: true, Collided: true, Stranger: true, Looked: true}},
		{"one of its device in another network", wants(), plan.Have{Kept: true}, []vpcport.Port{*port("p", abroad)}, true, looked("", port("p", abroad))},
		{"its port, and its network is not known any more", wants(over, noNetwork), plan.Have{Kept: true}, []vpcport.Port{*port("p")}, true, looked("", port("p"))},
		{"the user's", wants(ofUser), plan.Have{Kept: true}, []vpcport.Port{*port(given, free)}, true, looked("", port(given, free))},
		{"one that was gone", wants(), looked("p", port("p"), "q"), nil, true, looked("p", nil)},
	} {
		if d := cmp.Diff(tc.want, tc.h.Seen(tc.w, tc.ports, tc.late)); d != "" {
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
		keep, extra := plan.Choose(ports, tc.recorded)
		if keep.ID != tc.keep || !cmp.Equal(extra, tc.extra) {
			t.Errorf("with %q recorded: kept %s, not %v; want %s, %v", tc.recorded, keep.ID, extra, tc.keep, tc.extra)
		}
	}
	if keep, extra := plan.Choose(nil, "p"); keep != nil || extra != nil {
		t.Errorf("of none: %v, %v", keep, extra)
	}
}
