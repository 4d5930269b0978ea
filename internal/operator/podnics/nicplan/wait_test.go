package nicplan_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

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
