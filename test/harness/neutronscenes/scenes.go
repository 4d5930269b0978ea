// Package neutronscenes plays every request that the provider of Neutron's ports makes, with
// every answer that there is, with a Neutron, and compares what one answers with what another
// does: the lab's own with a real one.
package neutronscenes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
)

// Exchange is a request and its answer, with what differs from one Neutron to the next
// taken out.
type Exchange struct {
	Request string `json:"request"`
	Match   string `json:"ifMatch,omitempty"`
	Body    any    `json:"body,omitempty"`
	Status  int    `json:"status"`
	Answer  any    `json:"answer,omitempty"`
}

// OfLab is a Neutron of the lab for scenes, with a host of a kind, and its URL.
func OfLab(t *testing.T, host neutronfake.Host) (string, Stage) {
	t.Helper()
	cloud := neutronfake.New(neutronfake.Options{})
	cloud.AddHost("node-a", host)
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	s := Stage{
		Project: "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930", Host: "node-a", Quota: func(n int) { cloud.SetQuota(n) },
		Network: cloud.AddNetwork(neutronfake.Network{Name: Name}).ID, Group: cloud.AddGroup(neutronfake.Group{Name: Name}).ID,
	}
	s.Web = cloud.AddSubnet(neutronfake.Subnet{Name: "web", Network: s.Network, CIDR: Web, Gateway: Web.Addr().Next()}).ID
	s.Small = cloud.AddSubnet(neutronfake.Subnet{Name: "small", Network: s.Network, CIDR: Small, Gateway: Small.Addr().Next()}).ID
	return server.URL, s
}

// What is there before the scenes, in every Neutron.
var (
	Name  = "observed" // of the network and the group
	Web   = netip.MustParsePrefix("192.168.0.0/24")
	Small = netip.MustParsePrefix("192.168.1.0/30")
)

// absent is an ID of nothing.
const absent = "00000000-0000-4000-8000-000000000000"

// Stage is what there is before the scenes: IDs of the network, of its subnets Web and Small,
// with DHCP, of a group, the name of a host, and the project that they are of.
type Stage struct {
	Network, Web, Small, Group, Host, Project string
	Quota                                     func(ports int) // -1: none
}

// Play makes every request that the provider makes, with every answer that there is, and
// returns the exchanges.
func Play(t *testing.T, target string, s Stage) []Exchange {
	t.Helper()
	log := &exchanges{ids: map[string]string{}}
	for i, id := range []string{s.Network, s.Web, s.Small, s.Group} {
		log.ids[id] = []string{"<network>", "<web>", "<small>", "<group>"}[i]
	}
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); log.request(r) }, ModifyResponse: log.answer})
	defer proxy.Close()
	p, err := neutron.Open(neutron.Settings{Endpoint: proxy.URL, Project: s.Project})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s.scenes(t, p)
	return log.all
}

// scenes are the calls, each with the class that it must have.
func (s Stage) scenes(t *testing.T, p *neutron.Provider) {
	t.Helper()
	ctx := context.Background()
	want := func(what string, err error, class vpcport.Class) {
		t.Helper()
		if vpcport.ClassOf(err) != class || (err == nil) != (class == vpcport.Unknown) {
			t.Errorf("%s: %v, want %v", what, err, class)
		}
	}
	at := func(uid string, ip string) vpcport.NewPort {
		n := vpcport.NewPort{
			NetworkID: s.Network, Name: "default/" + uid, Device: vpcport.Device("observed", uid), MAC: vpcport.DerivedMAC("observed", uid, 0),
			Addresses: []vpcport.NewAddress{{SubnetID: s.Web}}, Groups: []string{s.Group},
		}
		if ip != "" {
			n.Addresses[0].IP = netip.MustParseAddr(ip)
		}
		return n
	}
	var made []vpcport.Port
	create := func(what string, class vpcport.Class, ports ...vpcport.NewPort) {
		t.Helper()
		got, err := p.Create(ctx, ports)
		want(what, err, class)
		made = append(made, got...)
	}
	edited := func(uid string, edit func(*vpcport.NewPort)) vpcport.NewPort { n := at(uid, ""); edit(&n); return n }

	_, err := p.Network(ctx, Name)
	want("network", err, vpcport.Unknown)
	_, err = p.Network(ctx, absent)
	want("no network", err, vpcport.NetworkGone)
	create("two ports", vpcport.Unknown, at("u-1", "192.168.0.77"), at("u-2", ""))
	if len(made) != 2 {
		t.Fatal("there are no ports")
	}
	create("bound", vpcport.Unknown, edited("u-3", func(n *vpcport.NewPort) { n.Host, n.Groups = s.Host, nil }))
	create("bound to nowhere", vpcport.Unknown, edited("u-4", func(n *vpcport.NewPort) { n.Host = "no-such-host" }))
	create("gateway", vpcport.Unknown, at("u-5", "192.168.0.1"))
	create("no network", vpcport.NetworkGone, edited("u-6", func(n *vpcport.NewPort) { n.NetworkID = absent }))
	create("no subnet", vpcport.ReferenceGone, at("u-6", ""), edited("u-7", func(n *vpcport.NewPort) { n.Addresses[0].SubnetID = absent }))
	create("no group", vpcport.ReferenceGone, edited("u-6", func(n *vpcport.NewPort) { n.Groups = []string{absent} }))
	create("a group's name", vpcport.Invalid, edited("u-6", func(n *vpcport.NewPort) { n.Groups = []string{"observed"} }))
	create("taken", vpcport.AddressTaken, at("u-6", ""), at("u-7", "192.168.0.77"))
	create("outside", vpcport.Invalid, at("u-6", "10.0.0.1"))
	create("broadcast", vpcport.Invalid, at("u-6", "192.168.0.255"))
	create("the MAC address again", vpcport.MACTaken, at("u-1", ""))
	create("room for one", vpcport.Unknown, edited("u-8", func(n *vpcport.NewPort) { n.Addresses[0].SubnetID = s.Small }))
	create("full", vpcport.SubnetFull, edited("u-9", func(n *vpcport.NewPort) { n.Addresses[0].SubnetID = s.Small }))
	s.Quota(len(made))
	create("quota", vpcport.OverQuota, at("u-9", ""))
	s.Quota(-1)

	ids := []string{made[0].ID, made[1].ID}
	for _, f := range []vpcport.Filter{
		{IDs: ids}, {Devices: []string{made[0].Device, made[1].Device}}, {MACs: []mac.Addr{made[1].MAC}, NetworkID: s.Network},
		{NetworkID: s.Network, Owner: vpcport.Owner}, {IDs: []string{absent}},
	} {
		_, err := p.Ports(ctx, f)
		want("listing", err, vpcport.Unknown)
	}
	_, err = p.Get(ctx, absent)
	want("no port", err, vpcport.PortGone)
	update := func(what string, class vpcport.Class, id string, revision int, c vpcport.Change) vpcport.Port {
		t.Helper()
		got, err := p.Update(ctx, id, revision, c)
		want(what, err, class)
		return got
	}
	none, nowhere, device := "", "no-such-host", "theirs"
	now, err := p.Get(ctx, made[0].ID)
	want("a port", err, vpcport.Unknown)
	now = update("bind", vpcport.Unknown, now.ID, now.Revision, vpcport.Change{Host: &s.Host})
	update("an old revision", vpcport.Stale, now.ID, 0x7fffffff, vpcport.Change{Device: &device})
	update("nowhere", vpcport.Unknown, now.ID, 0, vpcport.Change{Host: &nowhere})
	update("nowhere again", vpcport.Unknown, now.ID, 0, vpcport.Change{Host: &nowhere})
	update("no group", vpcport.ReferenceGone, now.ID, 0, vpcport.Change{Groups: []string{absent}})
	update("let go", vpcport.Unknown, now.ID, 0, vpcport.Change{Host: &none, Device: &none, Owner: &none, Groups: []string{}})
	update("no port", vpcport.PortGone, absent, 7, vpcport.Change{Host: &none})
	want("delete", p.Delete(ctx, made[2].ID), vpcport.Unknown) // bound
	want("delete again", p.Delete(ctx, made[2].ID), vpcport.Unknown)
	for _, o := range slices.Delete(slices.Clone(made), 2, 3) {
		want("delete", p.Delete(ctx, o.ID), vpcport.Unknown)
	}
}

// exchanges notes requests and answers that go by, one at a time.
type exchanges struct {
	mu  sync.Mutex // guards what follows
	all []Exchange
	ids map[string]string // what stands for an ID
}

func (x *exchanges) request(p *httputil.ProxyRequest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := p.In
	body, _ := io.ReadAll(r.Body)
	p.Out.Body = io.NopCloser(bytes.NewReader(body))
	query := r.URL.Query()
	for _, values := range query {
		for i := range values {
			values[i] = x.plain(values[i])
		}
		slices.Sort(values)
	}
	request := r.Method + " " + r.URL.Path
	if len(query) > 0 {
		q, _ := url.QueryUnescape(query.Encode())
		request += "?" + q
	}
	e := Exchange{Request: x.plain(request)}
	if r.Header.Get("If-Match") != "" {
		e.Match = "revision_number=<n>"
	}
	_ = json.Unmarshal(body, &e.Body)
	e.Body = x.walk("", e.Body)
	x.all = append(x.all, e)
}

func (x *exchanges) answer(r *http.Response) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	x.mu.Lock()
	defer x.mu.Unlock()
	e := &x.all[len(x.all)-1]
	e.Status = r.StatusCode
	if len(body) > 0 && json.Unmarshal(body, &e.Answer) != nil {
		e.Answer = string(body)
	}
	e.Answer = x.walk("", e.Answer)
	return nil
}

var (
	anID      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	revisions = regexp.MustCompile(`Constrained to \d+, but current revision is \d+`)
	host      = regexp.MustCompile(`http://[^/]+/`)
)

// plain takes IDs and revisions out of a text.
func (x *exchanges) plain(s string) string {
	s = revisions.ReplaceAllString(s, "Constrained to <n>, but current revision is <n>")
	s = host.ReplaceAllString(s, "http://<neutron>/")
	return anID.ReplaceAllStringFunc(s, func(id string) string {
		if id == absent {
			return "<absent>"
		}
		if x.ids[id] == "" {
			x.ids[id] = fmt.Sprintf("<id %d>", len(x.ids)-3)
		}
		return x.ids[id]
	})
}

// walk takes out of a value what differs from one Neutron to the next, in the order of
// names and devices.
func (x *exchanges) walk(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out[k] = x.walk(k, v[k])
		}
		return out
	case []any:
		slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(order(a), order(b)) })
		out := []any{}
		for _, item := range v {
			out = append(out, x.walk(key, item))
		}
		return out
	case string:
		switch {
		case key == "created_at" || key == "updated_at":
			return "<time>"
		case key == "ip_address":
			return "<address>"
		case key == "datapath_type":
			return "<datapath>"
		}
		return x.plain(v)
	case float64:
		if key == "revision_number" || key == "mtu" {
			return "<n>"
		}
	}
	return v
}

// order is by what things in lists are sorted.
func order(v any) string {
	m, ok := v.(map[string]any)
	if !ok {
		return ""
	}
	return fmt.Sprint(m["device_id"], m["cidr"], m["name"])
}
