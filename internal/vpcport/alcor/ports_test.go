package alcor_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

func (b *bed) update(t *testing.T, id string, c vpcport.Change) vpcport.Port {
	t.Helper()
	p, err := b.provider.Update(t.Context(), id, 0, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (b *bed) get(t *testing.T, id string) vpcport.Port {
	t.Helper()
	p, err := b.provider.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A port's status comes from the agent of its host, in any case.
func TestStatuses(t *testing.T) {
	for status, want := range map[string]struct {
		status  vpcport.Status
		binding vpcport.BindingResult
	}{
		"": {vpcport.StatusDown, vpcport.Bound}, "DOWN": {vpcport.StatusDown, vpcport.Bound}, "Created": {vpcport.StatusDown, vpcport.Bound},
		"pending": {vpcport.StatusBuild, vpcport.Bound}, "BUILD": {vpcport.StatusBuild, vpcport.Bound},
		"ACTIVE": {vpcport.StatusActive, vpcport.Bound}, "active": {vpcport.StatusActive, vpcport.Bound}, "success": {vpcport.StatusActive, vpcport.Bound},
		"failed": {vpcport.StatusError, vpcport.BindingFailed}, "FAILURE": {vpcport.StatusError, vpcport.BindingFailed}, "Error": {vpcport.StatusError, vpcport.BindingFailed},
		"else": {vpcport.StatusDown, vpcport.Bound},
	} {
		b := newBed(t, alcorfake.Options{})
		p := b.cloud.AddPort(alcorfake.Port{Network: b.network.ID, Host: "node-a", Status: status})
		if got := b.get(t, p.ID); got.Status != want.status || got.Binding.Result != want.binding {
			t.Errorf("%q: got %v, %v; want %v", status, got.Status, got.Binding.Result, want)
		}
		b.cloud.Edit(p.ID, func(p *alcorfake.Port) { p.Host = "" })
		if got := b.get(t, p.ID); got.Binding.Result != vpcport.Unbound || got.Status == vpcport.StatusActive {
			t.Errorf("%q without a host: got %v, %v", status, got.Status, got.Binding.Result)
		}
	}
}

// A port is bound, unbound, bound again and moved. Alcor still shows the old host of an unbound port,
// so a tag marks it. Other tags stay.
func TestLifeOfAPort(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	b.cloud.AddHost("node-b", alcorfake.Host{})
	p := b.make(t)
	b.cloud.Edit(p.ID, func(p *alcorfake.Port) { p.Tags = []string{"theirs"} })
	a, other, none := "node-a", "node-b", ""
	for _, step := range []struct {
		host *string
		tags []string
		puts int // so far
	}{
		{&a, []string{"theirs"}, 1},
		{&none, []string{"theirs", "berth:unbound"}, 2},
		{&none, []string{"theirs", "berth:unbound"}, 2}, // already
		{&a, []string{"theirs"}, 3},
		{&other, []string{"theirs"}, 4},
	} {
		got := b.update(t, p.ID, vpcport.Change{Host: step.host})
		there := b.cloud.Ports()[0]
		if got.Host != *step.host || (got.Binding.Result == vpcport.Bound) != (*step.host != "") || !slices.Equal(there.Tags, step.tags) {
			t.Errorf("to %q: got %q, %+v, with the tags %q", *step.host, got.Host, got.Binding, there.Tags)
		}
		if n := b.cloud.HTTP.Count(http.MethodPut, "/project/*/ports/*"); n != step.puts {
			t.Errorf("to %q: changed %d times, want %d", *step.host, n, step.puts)
		}
		b.cloud.Programmed(p.ID, there.Host, true)
		if got := b.get(t, p.ID); (got.Status == vpcport.StatusActive) != (*step.host != "") {
			t.Errorf("at %q: the status is %v", *step.host, got.Status)
		}
	}
	given := b.update(t, p.ID, vpcport.Change{Host: &none, Device: &none, Owner: &none})
	if given.Device != "" || given.Owner != "" || given.Host != "" {
		t.Errorf("given back: %+v", given)
	}
}

// A change keeps properties that it does not have. Alcor itself would turn port security on.
func TestPortSecurityStaysOff(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	device := vpcport.Device("blue", "u-1")
	for _, off := range []bool{true, false} {
		p := b.cloud.AddPort(alcorfake.Port{Network: b.network.ID, Unsecured: off, Name: "theirs"})
		b.update(t, p.ID, vpcport.Change{Device: &device})
		i := slices.IndexFunc(b.cloud.Ports(), func(o alcorfake.Port) bool { return o.ID == p.ID })
		if now := b.cloud.Ports()[i]; now.Unsecured != off || now.Name != "theirs" || now.Device != device {
			t.Errorf("without port security %t: it is %+v", off, now)
		}
	}
}

// A host that Alcor does not have is no error: the port is made or changed without it.
func TestUnknownHosts(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t, func(n *vpcport.NewPort) { n.Host = "node-z" })
	if p.Host != "node-z" || p.Binding.Result != vpcport.BindingFailed || len(b.cloud.Ports()) != 1 {
		t.Errorf("made %+v, there are %v", p, b.cloud.Ports())
	}
	z, device := "node-z", vpcport.Device("blue", "u-2")
	p = b.update(t, p.ID, vpcport.Change{Host: &z, Device: &device})
	if p.Host != z || p.Binding.Result != vpcport.BindingFailed || p.Device != device {
		t.Errorf("changed %+v", p)
	}
	b.cloud.AddHost(z, alcorfake.Host{Fails: true})
	if p = b.update(t, p.ID, vpcport.Change{Host: &z}); p.Binding.Result != vpcport.BindingFailed {
		t.Errorf("with an agent that fails: %+v", p)
	}
	b.cloud.AddHost(z, alcorfake.Host{})
	if p = b.update(t, p.ID, vpcport.Change{Host: &z}); p.Binding.Result != vpcport.Bound || p.Binding.Plug.Netns != "vpc-ns"+b.network.ID {
		t.Errorf("with an agent: %+v", p)
	}
	b.cloud.RemoveHost(z)
	vpcporttest.WantError(t, "deleting a port of a host that went", b.provider.Delete(t.Context(), p.ID), vpcport.Conflict, p.ID)
}

// A concurrent change of another client is detected, because the port is read again.
func TestConcurrentChanges(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Skip: 1, Times: 1, Falsify: vpcporttest.Swap("berth:blue:u-2", "berth:blue:u-3")})
	device := vpcport.Device("blue", "u-2")
	_, err := b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Device: &device})
	vpcporttest.WantError(t, "Update", err, vpcport.Conflict, "")
	b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodPut, Status: 200, After: false, Message: "nothing done"})
	_, err = b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Groups: []string{b.group}})
	vpcporttest.WantError(t, "Update that changes nothing", err, vpcport.Conflict, "")
}

// Ports of other projects are ignored, though Alcor lists them.
func TestOtherProjects(t *testing.T) {
	b := newBed(t, alcorfake.Options{Unfiltered: true})
	p := b.cloud.AddPort(alcorfake.Port{Network: b.network.ID, Project: "another", Device: "d"})
	_, err := b.provider.Get(t.Context(), p.ID)
	vpcporttest.WantError(t, "Get", err, vpcport.PortGone, p.ID)
	host := "node-a"
	_, err = b.provider.Update(t.Context(), p.ID, 0, vpcport.Change{Host: &host})
	vpcporttest.WantError(t, "Update", err, vpcport.PortGone, p.ID)
	if found, err := b.provider.Ports(t.Context(), vpcport.Filter{IDs: []string{p.ID}}); err != nil || len(found) != 0 {
		t.Errorf("listed %v, %v", found, err)
	}
	if id, err := b.provider.Project(t.Context()); id != project || err != nil {
		t.Errorf("project %q, %v", id, err)
	}
	theirs := b.cloud.AddNetwork(alcorfake.Network{Name: "theirs", Project: "another"})
	_, err = b.provider.Network(t.Context(), theirs.ID)
	vpcporttest.WantError(t, "Network", err, vpcport.NetworkGone, theirs.ID)
	shared := b.cloud.AddNetwork(alcorfake.Network{Name: "shared", Project: "another", Shared: true})
	if n, err := b.provider.Network(t.Context(), shared.ID); err != nil || n.ID != shared.ID {
		t.Errorf("a shared VPC: %+v, %v", n, err)
	}
	b.cloud.AddSubnet(alcorfake.Subnet{Name: "theirs", Network: shared.ID, CIDR: b.web.CIDR})
	if n, err := b.provider.Network(t.Context(), b.network.ID); err != nil || len(n.Subnets) != 2 {
		t.Errorf("subnets of other VPCs are in it: %+v, %v", n, err)
	}
	b.cloud.AddNetwork(alcorfake.Network{Name: "shared"})
	_, err = b.provider.Network(t.Context(), "shared")
	vpcporttest.WantError(t, "two of a name", err, vpcport.Invalid, "shared")
}

// A port says when it was made, and has a name that is not too long.
func TestNameAndTime(t *testing.T) {
	clock := start()
	b := newBed(t, alcorfake.Options{Clock: clock})
	p := b.make(t, func(n *vpcport.NewPort) { n.Name = strings.Repeat("é", 200) })
	if !p.CreatedAt.Equal(clock.Now().Truncate(time.Second)) || len(p.Name) > 255 || p.Revision != 0 {
		t.Errorf("made at %v, named by %d bytes, revision %d", p.CreatedAt, len(p.Name), p.Revision)
	}
}

// Ports of another project and paths for IDs are refused.
func TestPortsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		name string
		lie  func(b *bed) func([]byte) []byte
	}{
		{"another project", func(*bed) func([]byte) []byte { return vpcporttest.Swap(project, vpcporttest.Absent) }},
		{"a path for an ID", func(*bed) func([]byte) []byte { return vpcporttest.Swap(`"port":{"id":"`, `"port":{"id":"../vpcs/`) }},
	} {
		b := newBed(t, alcorfake.Options{})
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodPost, After: true, Falsify: tc.lie(b)})
		n := b.newPort("u-1")
		n.Host, n.Groups = "node-a", []string{b.group}
		_, err := b.provider.Create(t.Context(), []vpcport.NewPort{n})
		vpcporttest.WantError(t, tc.name, err, vpcport.Bug, "")
	}
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Falsify: vpcporttest.Swap(b.network.ID, "a/b")})
	_, err := b.provider.Get(t.Context(), p.ID)
	vpcporttest.WantError(t, "a path for the ID of a network", err, vpcport.Bug, "")
}

// Invalid ports of other clients do not break listings.
func TestInvalidPortsOfOthersAreIgnored(t *testing.T) {
	b := newBed(t, alcorfake.Options{})
	p := b.make(t)
	other := b.make(t, func(n *vpcport.NewPort) {
		n.Device, n.MAC = vpcport.Device("blue", "u-2"), vpcport.DerivedMAC("blue", "u-2", 0)
	})
	for name, lie := range map[string]func([]byte) []byte{
		"its address": vpcporttest.Swap(other.Addresses[0].IP.String(), "none"), "its MAC address": vpcporttest.Swap(other.MAC.String(), "none"),
	} {
		b.cloud.HTTP.Inject(alcorfake.Fault{Method: http.MethodGet, Times: 1, Falsify: lie})
		got, err := b.provider.Ports(t.Context(), vpcport.Filter{NetworkID: b.network.ID, MACs: []mac.Addr{p.MAC}})
		if err != nil || len(got) != 1 || got[0].ID != p.ID {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		b.cloud.HTTP.ClearFaults()
	}
}
