package branch_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/test/harness"
)

// wantBound checks that a port is a branch of an instance's trunk, as EC2 has it too.
func (b *bed) wantBound(what string, p vpcport.Port, instance string) {
	b.t.Helper()
	plug := p.Binding.Plug
	if p.Host != instance || p.Binding.Result != vpcport.Bound || p.Status != vpcport.StatusActive || plug.Trunk != b.trunkMAC(instance) {
		b.t.Fatalf("%s: at %q, %+v, %v; want it bound to %s", what, p.Host, p.Binding, p.Status, instance)
	}
	all := b.cloud.State.Associations()
	i := slices.IndexFunc(all, func(a cloud.Association) bool { return a.BranchID == p.ID })
	if i < 0 || all[i].VLAN != plug.VLAN {
		b.t.Errorf("%s: plugged as VLAN %d; EC2 has %+v", what, plug.VLAN, all)
	}
}

// wantUnbindable checks that a port cannot be bound to a host, and that it is said why.
func wantUnbindable(t *testing.T, p vpcport.Port, err error, host, why string) {
	t.Helper()
	if err != nil || p.Host != host || p.Binding.Result != vpcport.BindingFailed || !strings.Contains(p.Binding.Why, why) {
		t.Errorf("at %q, %+v, %v; want it to fail at %s with %q", p.Host, p.Binding, err, host, why)
	}
}

// A port keeps its address from host to host, also when another process moves it.
func TestMove(t *testing.T) {
	b := newBed(t)
	p := b.make(b.provider, newPort("u-1", "i-a"))
	b.wantBound("made", p, "i-a")
	to := "i-a2"
	moved, err := b.open().Update(t.Context(), p.ID, 0, vpcport.Change{Host: &to})
	harness.OK(t, err)
	b.wantBound("moved", moved, to)
	if moved.Addresses[0] != p.Addresses[0] || moved.MAC.String() != p.MAC.String() {
		t.Errorf("moved with %v, %v; had %v, %v", moved.Addresses, moved.MAC, p.Addresses, p.MAC)
	}
	seen, err := b.open().Get(t.Context(), p.ID)
	harness.OK(t, err)
	b.wantBound("as another process sees it", seen, to)
}

// If an instance cannot take a branch, the binding has the reason, and there is no error.
func TestHostsThatCannotTakeABranch(t *testing.T) {
	b := newBed(t)
	other := b.make(b.provider, newPort("u-1", "i-b"))
	host := "i-a"
	p, err := b.provider.Update(t.Context(), other.ID, 0, vpcport.Change{Host: &host})
	wantUnbindable(t, p, err, host, "in zone zone-b, and instance i-a in zone zone-a")

	for i := range 9 { // as many as an m5.large has
		b.wantBound("one of nine", b.make(b.provider, newPort("full-"+strconv.Itoa(i), host)), host)
	}
	tenth := b.make(b.provider, newPort("u-10", host))
	if tenth.Host != "" || tenth.Binding.Result != vpcport.Unbound {
		t.Errorf("the tenth: at %q, %+v", tenth.Host, tenth.Binding)
	}
	p, err = b.provider.Update(t.Context(), tenth.ID, 0, vpcport.Change{Host: &host})
	wantUnbindable(t, p, err, host, "as many branch interfaces as its type may have")

	host = "i-none"
	p, err = b.provider.Update(t.Context(), tenth.ID, 0, vpcport.Change{Host: &host})
	wantUnbindable(t, p, err, host, "instance i-none has no attached trunk interface of cluster contract")
	b.trunk(host, map[string]string{eni.TagCluster: "another", eni.TagOwner: eni.Owner})
	b.clock.Advance(time.Minute)
	p, err = b.provider.Update(t.Context(), tenth.ID, 0, vpcport.Change{Host: &host})
	wantUnbindable(t, p, err, host, "has no attached trunk interface of cluster contract") // that is another cluster's
	_, err = b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-11", host)})
	failsWith(t, "a port in any subnet of an instance without a trunk", err, vpcport.Conflict)
}

// The new trunk of an instance is found.
func TestTrunkThatIsReplaced(t *testing.T) {
	b := newBed(t)
	b.wantBound("before", b.make(b.provider, newPort("u-1", "i-a")), "i-a")
	b.cloud.State.Terminate("i-a")
	b.cloud.State.AddInstance("i-a", "m5.large", "subnet-a")
	b.trunk("i-a", map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner})
	b.clock.Advance(time.Minute)
	host := "i-a"
	p := b.make(b.provider, newPort("u-2", host))
	p, err := b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	harness.OK(t, err)
	b.wantBound("after", p, host)
}

// If another branch has the VLAN, the next ones are tried, and the tags name the one in use.
func TestTakenVLANs(t *testing.T) {
	b := newBed(t)
	b.cloud.Front.Inject(cloudfake.Fault{Op: "AssociateBranch", Times: 2, Err: cloudfake.Err(cloud.Conflict, "InvalidVlanId.Duplicate")})
	p := b.make(b.provider, newPort("u-1", "i-a"))
	b.wantBound("at the third", p, "i-a")
	b.awaitNote(p.ID)
	if tags := b.eni(p.ID).Tags; tags[branch.TagVLAN] != strconv.Itoa(p.Binding.Plug.VLAN) {
		t.Errorf("VLAN %d; the tags %v", p.Binding.Plug.VLAN, tags)
	}
	b.cloud.Front.Inject(cloudfake.Fault{Op: "AssociateBranch", Err: cloudfake.Err(cloud.Conflict, "InvalidVlanId.Duplicate")})
	host := "i-a2"
	_, err := b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	failsWith(t, "where all are taken", err, vpcport.Conflict)
}

// A released VLAN cools down from its release, also for the same NIC, and however long it was in use.
func TestReleasedVLANsCoolDown(t *testing.T) {
	host, none := "i-a", ""
	for name, tc := range map[string]struct {
		cooling time.Duration // 0: the default
		used    time.Duration
		wait    time.Duration
		moved   bool // released by Update, not by Delete
		again   bool // the VLAN is used again
	}{
		"deleted":                   {},
		"deleted after long use":    {used: time.Hour},
		"moved after long use":      {used: time.Hour, moved: true},
		"cooled down":               {wait: branch.Cooling, again: true},
		"with a longer setting":     {cooling: time.Hour, wait: branch.Cooling},
		"cooled down for as long":   {cooling: time.Hour, wait: time.Hour, again: true},
		"with a setting, long used": {cooling: time.Hour, used: 2 * time.Hour},
	} {
		b := newBed(t, func(s *branch.Settings) { s.Cooling = tc.cooling })
		if got, want := b.provider.Traits().Cooling, cmp.Or(tc.cooling, branch.Cooling); got != want {
			t.Errorf("%s: VLANs cool down for %v, want %v", name, got, want)
		}
		p := b.make(b.provider, newPort("u-1", host))
		vlan := p.Binding.Plug.VLAN
		b.clock.Advance(tc.used)
		update := func(to *string) {
			var err error
			p, err = b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: to})
			harness.OK(t, err)
		}
		if tc.moved {
			update(&none)
			update(&host)
		} else {
			harness.OK(t, b.provider.Delete(t.Context(), p.ID))
			b.clock.Advance(tc.wait)
			p = b.make(b.provider, newPort("u-1", host))
		}
		if b.wantBound(name, p, host); (p.Binding.Plug.VLAN == vlan) != tc.again {
			t.Errorf("%s: VLAN %d, then %d", name, vlan, p.Binding.Plug.VLAN)
		}
	}
}

// A trunk that is being attached gets no branch yet. Of two trunks, the first by ID gets them.
func TestWhichTrunk(t *testing.T) {
	b := newBed(t)
	tags := map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner}
	b.cloud.State.SetAttachTime(time.Minute)
	made, err := b.cloud.CreateENI(t.Context(), cloud.CreateENI{SubnetID: "subnet-a", Type: cloud.InterfaceTrunk, Tags: tags})
	harness.OK(t, err)
	_, err = b.cloud.AttachENI(t.Context(), made.ID, "i-none", 1)
	harness.OK(t, err)
	host := "i-none"
	p := b.make(b.provider, newPort("u-1", "i-b", func(n *vpcport.NewPort) { n.Host, n.Addresses = "", []vpcport.NewAddress{{SubnetID: "subnet-a"}} }))
	p, err = b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	wantUnbindable(t, p, err, host, "no attached trunk interface")
	b.clock.Advance(time.Minute)
	p, err = b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	harness.OK(t, err)
	b.wantBound("attached", p, host)

	first := b.eni(b.trunk("i-a", tags))
	mine := b.trunkMAC("i-a")
	if mine == first.MAC.String() {
		t.Fatal("the second trunk is listed first")
	}
	for range 8 { // whichever a map gives first
		if p := b.make(b.open(), newPort("u-"+strconv.Itoa(len(b.cloud.Front.Calls())), "i-a")); p.Binding.Plug.Trunk != mine {
			t.Errorf("on %s, want %s", p.Binding.Plug.Trunk, mine)
		}
	}
}

// An association whose reply was lost is found, and not requested again.
func TestLostAssociation(t *testing.T) {
	b := newBed(t)
	b.cloud.Front.Inject(cloudfake.Fault{Op: "AssociateBranch", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
	p := b.make(b.provider, newPort("u-1", "i-a"))
	host := "i-a"
	for _, who := range []*branch.Provider{b.provider, b.open()} {
		b.clock.Advance(branch.Settle)
		got, err := who.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
		harness.OK(t, err)
		b.wantBound("seen", got, host)
	}
	b.clock.Advance(branch.Settle)
	none := ""
	p, err := b.open().Update(t.Context(), p.ID, 0, vpcport.Change{Host: &none})
	harness.OK(t, err)
	if n := len(b.cloud.State.Associations()); n != 0 || p.Host != "" {
		t.Errorf("taken off: at %q, %d associations", p.Host, n)
	}
}

// If an operator is killed before it tags a branch with its association, another operator can move
// the port. Each move makes a new association, also with a VLAN that the port had before.
func TestAssociationsMissingInTags(t *testing.T) {
	b := newBed(t)
	writing := &untagged{Cloud: b.cloud}
	unable := func(s *branch.Settings) { s.Cloud = writing }
	p := b.make(b.open(unable), newPort("u-1", "i-a"))
	if id := b.eni(p.ID).Tags[branch.TagAssociation]; id != "" {
		t.Fatalf("the tags have the association %q", id)
	}
	for _, host := range []string{"i-a2", "i-a", "i-a2", "i-a"} {
		b.clock.Advance(branch.Settle + branch.Cooling)
		moved, err := b.open().Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
		harness.OK(t, err)
		b.wantBound("moved", moved, host)
		b.awaitNote(p.ID)
	}

	// Nor is the association before taken for one that was not written down since.
	b.clock.Advance(branch.Settle + branch.Cooling)
	b.cloud.Front.Inject(cloudfake.Fault{Op: "Tag", Times: 1, Err: cloudfake.Err(cloud.Transient, "")})
	host := "i-a2"
	_, err := b.open().Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	failsWith(t, "moved, and the intent was not written", err, vpcport.Transient)
	_, err = b.open(unable).Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	harness.OK(t, err)
	b.clock.Advance(branch.Settle + branch.Cooling)
	host = "i-a"
	moved, err := b.open().Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	harness.OK(t, err)
	b.wantBound("moved on", moved, host)
	b.awaitNote(p.ID)

	// Without the tag nobody can tell it, and it is not taken for one that was before.
	harness.OK(t, b.cloud.Tag(t.Context(), p.ID, map[string]string{branch.TagAssociation: ""}))
	b.clock.Advance(branch.Settle)
	none := ""
	_, err = b.open().Update(t.Context(), p.ID, 0, vpcport.Change{Host: &none})
	failsWith(t, "taking it off, whose association nobody knows", err, vpcport.Conflict)
	harness.OK(t, b.provider.Delete(t.Context(), p.ID))
}

// A provider that is no longer used writes missing tags at once.
func TestMissingTagsAreWrittenAtTheEnd(t *testing.T) {
	b, ended := newBed(t), make(chan struct{})
	b.cloud.Front.Inject(cloudfake.Fault{Op: "Tag", Times: 1, Err: cloudfake.Err(cloud.Transient, "")})
	p := b.make(b.open(func(s *branch.Settings) { s.Ended = ended }), newPort("u-1", "i-a"))
	harness.Eventually(t, time.Minute, "the first try fails", func() error {
		if b.cloud.Front.Count("Tag") == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	close(ended)
	b.awaitNote(p.ID)
}

// awaitNote waits until the tags of the one branch have its association.
func (b *bed) awaitNote(id string) {
	b.t.Helper()
	harness.Eventually(b.t, time.Minute, "the association is written down", func() error {
		if has, is := b.eni(id).Tags[branch.TagAssociation], b.cloud.State.Associations()[0].ID; has != is {
			return fmt.Errorf("the tags have %q, EC2 %q", has, is)
		}
		return nil
	})
}

// untagged is a cloud in which no tag of an association is written.
type untagged struct{ *cloudfake.Cloud }

func (u *untagged) Tag(ctx context.Context, id string, tags map[string]string) error {
	if strings.HasPrefix(tags[branch.TagAssociation], "trunk-assoc-") {
		return cloudfake.Err(cloud.Transient, "")
	}
	return u.Cloud.Tag(ctx, id, tags)
}

// A port whose disassociation got no reply is moved once EC2 shows it without a trunk.
func TestLostDisassociation(t *testing.T) {
	b := newBed(t)
	p := b.make(b.provider, newPort("u-1", "i-a"))
	host := "i-a2"
	b.cloud.Front.Inject(cloudfake.Fault{Op: "DisassociateBranch", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
	for _, class := range []vpcport.Class{vpcport.Transient, vpcport.Conflict} { // then the memory is wrong
		_, err := b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
		failsWith(t, "without a reply", err, class)
	}
	moved, err := b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	harness.OK(t, err)
	b.wantBound("moved", moved, host)
}

// What the process knows takes precedence over forged tags, and invalid tags bind nothing.
func TestForgedTags(t *testing.T) {
	b := newBed(t)
	p := b.make(b.provider, newPort("u-1", "i-a"))
	harness.OK(t, b.cloud.Tag(t.Context(), p.ID, map[string]string{branch.TagVLAN: "7", branch.TagTrunk: b.trunk("i-b", map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner})}))
	b.clock.Advance(branch.Settle)
	seen, err := b.provider.Get(t.Context(), p.ID)
	harness.OK(t, err)
	b.wantBound("as the process that bound it sees it", seen, "i-a")

	for _, vlan := range []string{"", "0", "4095", "-1", "x"} {
		harness.OK(t, b.cloud.Tag(t.Context(), p.ID, map[string]string{branch.TagVLAN: vlan}))
		if seen, err := b.open().Get(t.Context(), p.ID); err != nil || seen.Host != "" || seen.Binding.Result != vpcport.Unbound {
			t.Errorf("with the tag %q: at %q, %+v, %v", vlan, seen.Host, seen.Binding, err)
		}
	}
}

// Nobody makes an ENI a port by naming it: not one whose addresses are for pods, nor a trunk, nor
// another cluster's, nor one without tags. One that is tagged as a port may be is taken, and
// given back for the next.
func TestGivenENIs(t *testing.T) {
	b := newBed(t)
	device, owner, none := vpcport.Device(cluster, "u-1"), vpcport.Owner, ""
	for name, id := range map[string]string{
		"for pods":          b.cloud.State.AddENI("i-a2", 2, cloud.InterfaceOrdinary, map[string]string{eni.TagCluster: cluster, eni.TagOwner: eni.Owner}),
		"a trunk":           b.cloud.State.AddENI("i-none", 1, cloud.InterfaceTrunk, map[string]string{eni.TagCluster: cluster, eni.TagNIC: ""}),
		"another cluster's": b.cloud.State.AddENI("i-none", 2, cloud.InterfaceOrdinary, map[string]string{eni.TagCluster: "another", eni.TagNIC: ""}),
	} {
		before := b.eni(id).Tags
		_, err := b.provider.Update(t.Context(), id, 0, vpcport.Change{Device: &device, Owner: &owner})
		failsWith(t, name, err, vpcport.PortGone)
		if after := b.eni(id).Tags; !maps.Equal(before, after) {
			t.Errorf("%s: its tags were %v, are %v", name, before, after)
		}
	}
	given, err := b.cloud.CreateENI(t.Context(), cloud.CreateENI{SubnetID: "subnet-a", Groups: []string{"sg-web"}, Tags: map[string]string{eni.TagCluster: cluster, eni.TagNIC: "", branch.TagNamespace: "shop"}})
	harness.OK(t, err)
	host := "i-a"
	for range 2 {
		p, err := b.provider.Update(t.Context(), given.ID, 0, vpcport.Change{Device: &device, Owner: &owner})
		if err != nil || p.Device != device || p.Owner != owner || !slices.Equal(p.Tags, []string{vpcport.NamespaceTag(cluster, "shop")}) {
			t.Fatalf("taken: %+v, %v", p, err)
		}
		p, err = b.provider.Update(t.Context(), given.ID, 0, vpcport.Change{Host: &host})
		harness.OK(t, err)
		b.wantBound("given", p, host)
		p, err = b.provider.Update(t.Context(), given.ID, 0, vpcport.Change{Device: &none, Owner: &none, Host: &none})
		if err != nil || p.Device != "" || p.Owner != "" || p.Host != "" {
			t.Fatalf("given back: %+v, %v", p, err)
		}
	}
}

// An ENI that is attached to an instance is no branch.
func TestAttachedENI(t *testing.T) {
	b := newBed(t)
	id := b.cloud.State.AddENI("i-a", 2, cloud.InterfaceOrdinary, map[string]string{eni.TagCluster: cluster, eni.TagOwner: branch.Owner, eni.TagNIC: vpcport.Device(cluster, "u-1")})
	host := "i-a2"
	p, err := b.provider.Update(t.Context(), id, 0, vpcport.Change{Host: &host})
	wantUnbindable(t, p, err, host, "is attached to i-a as an ENI of its own")
}

// One listing has the trunks of all instances, also of those without one.
func TestTrunksAreListedTogether(t *testing.T) {
	b := newBed(t)
	b.clock.Advance(time.Minute)
	before := len(b.cloud.Front.Calls())
	for _, host := range []string{"i-a", "i-a2", "i-none", "i-none"} {
		_, _ = b.provider.Create(t.Context(), []vpcport.NewPort{newPort("u-"+host, host)})
	}
	listings := 0
	for _, c := range b.cloud.Front.Calls()[before:] {
		if c.Op == "ENIs" || c.Op == "ENIPage" {
			listings++
		}
	}
	if listings != 1 {
		t.Errorf("%d listings of ENIs, want 1", listings)
	}
}

// slow is a cloud whose listings last until they are let go.
type slow struct {
	branch.Cloud
	began, letGo chan struct{}
}

func (s *slow) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	if len(f.Types) > 0 {
		s.began <- struct{}{}
		<-s.letGo
	}
	return s.Cloud.ENIs(ctx, f)
}

// A call that waits for another's listing of trunks ends with its context.
func TestWaitForAListing(t *testing.T) {
	b := newBed(t)
	s := &slow{b.cloud, make(chan struct{}), make(chan struct{})}
	p := b.open(func(o *branch.Settings) { o.Cloud = s })
	first := make(chan error)
	go func() {
		_, err := p.Create(t.Context(), []vpcport.NewPort{newPort("u-1", "i-a")})
		first <- err
	}()
	<-s.began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Create(ctx, []vpcport.NewPort{newPort("u-2", "i-a")})
	failsWith(t, "one that gave up", err, vpcport.Transient)
	close(s.letGo)
	harness.OK(t, <-first)
}
