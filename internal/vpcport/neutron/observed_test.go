package neutron_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	lab "github.com/berthnet/berth/internal/lab/cloud/neutron"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/neutron"
)

// What a real Neutron answered to every request that the provider makes, and which one it
// was. To record it anew, run a Neutron without Keystone (auth_strategy noauth) and with
// an agent at a host, and
//
//	go test -run TestLabAnswersAsNeutron ./internal/vpcport/neutron -neutron http://127.0.0.1:9696 -host node-a
const observed = "testdata/observed.json"

var (
	realNeutron = flag.String("neutron", "", "URL of a real Neutron without Keystone, whose answers are recorded")
	realHost    = flag.String("host", "node-a", "a host at which it has an agent")
)

// exchange is a request and its answer, with what differs from one Neutron to the next
// taken out.
type exchange struct {
	Request string `json:"request"`
	Match   string `json:"ifMatch,omitempty"`
	Body    any    `json:"body,omitempty"`
	Status  int    `json:"status"`
	Answer  any    `json:"answer,omitempty"`
}

// The lab answers every request of the provider as a real Neutron did: with the same
// status, type and words of errors, and attributes.
func TestLabAnswersAsNeutron(t *testing.T) {
	if *realNeutron != "" {
		record(t)
	}
	b, err := os.ReadFile(observed)
	if err != nil {
		t.Fatal(err)
	}
	var want []exchange
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	cloud := lab.New(lab.Options{})
	cloud.AddHost("node-a", lab.Host{})
	server := httptest.NewServer(cloud)
	defer server.Close()
	s := stage{
		network: cloud.AddNetwork(lab.Network{Name: "observed"}).ID, group: cloud.AddGroup(lab.Group{Name: "observed"}).ID, host: "node-a",
		quota: func(n int) { cloud.SetQuota(n) },
	}
	s.web = cloud.AddSubnet(lab.Subnet{Name: "web", Network: s.network, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")}).ID
	s.small = cloud.AddSubnet(lab.Subnet{Name: "small", Network: s.network, CIDR: netip.MustParsePrefix("192.168.1.0/30"), Gateway: netip.MustParseAddr("192.168.1.1")}).ID
	got := play(t, server.URL, s)
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		if g.Request != w.Request || g.Match != w.Match || g.Status != w.Status || !equal(g.Body, w.Body) {
			t.Fatalf("exchange %d\nof the lab   %s\nof Neutron   %s", i, text(g), text(w))
		}
		if why := within("", g.Answer, w.Answer); why != "" {
			t.Errorf("exchange %d, %s: %s\nof the lab   %s\nof Neutron   %s", i, g.Request, why, text(g.Answer), text(w.Answer))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d exchanges with the lab, %d with Neutron: record them anew", len(got), len(want))
	}
}

// stage is what there is before the requests.
type stage struct {
	network, web, small, group, host string
	quota                            func(ports int)
}

// play makes every request that the provider makes, with every answer that there is, and
// returns the exchanges.
func play(t *testing.T, target string, s stage) []exchange {
	t.Helper()
	log := &exchanges{ids: map[string]string{}}
	for i, id := range []string{s.network, s.web, s.small, s.group} {
		log.ids[id] = []string{"<network>", "<web>", "<small>", "<group>"}[i]
	}
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); log.request(r) }, ModifyResponse: log.answer})
	defer proxy.Close()
	p, err := neutron.Open(neutron.Settings{Endpoint: proxy.URL, Project: project})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s.scenes(t, p)
	return log.all
}

// scenes are the calls, each with the class that it must have.
func (s stage) scenes(t *testing.T, p *neutron.Provider) {
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
			NetworkID: s.network, Name: "default/" + uid, Device: vpcport.Device("observed", uid), MAC: vpcport.DerivedMAC("observed", uid, 0),
			Addresses: []vpcport.NewAddress{{SubnetID: s.web}}, Groups: []string{s.group},
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

	for by, class := range map[string]vpcport.Class{"observed": vpcport.Unknown} {
		_, err := p.Network(ctx, by)
		want("network", err, class)
	}
	_, err := p.Network(ctx, absent)
	want("no network", err, vpcport.NetworkGone)
	create("two ports", vpcport.Unknown, at("u-1", "192.168.0.77"), at("u-2", ""))
	if len(made) != 2 {
		t.Fatal("there are no ports")
	}
	create("bound", vpcport.Unknown, edited("u-3", func(n *vpcport.NewPort) { n.Host, n.Groups = s.host, nil }))
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
	create("room for one", vpcport.Unknown, edited("u-8", func(n *vpcport.NewPort) { n.Addresses[0].SubnetID = s.small }))
	create("full", vpcport.SubnetFull, edited("u-9", func(n *vpcport.NewPort) { n.Addresses[0].SubnetID = s.small }))
	s.quota(len(made))
	create("quota", vpcport.OverQuota, at("u-9", ""))
	s.quota(-1)

	ids := []string{made[0].ID, made[1].ID}
	for _, f := range []vpcport.Filter{
		{IDs: ids}, {Devices: []string{made[0].Device, made[1].Device}}, {MACs: []mac.Addr{made[1].MAC}, NetworkID: s.network},
		{NetworkID: s.network, Owner: vpcport.Owner}, {IDs: []string{absent}},
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
	now = update("bind", vpcport.Unknown, now.ID, now.Revision, vpcport.Change{Host: &s.host})
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
	all []exchange
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
		slices.Sort(values)
	}
	request := r.Method + " " + r.URL.Path
	if len(query) > 0 {
		q, _ := url.QueryUnescape(query.Encode())
		request += "?" + q
	}
	e := exchange{Request: x.plain(request)}
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
		keys := []string{}
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
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

// within tells what of an answer of the lab is not so in Neutron's, which may have more
// attributes; empty: nothing.
func within(at string, got, want any) string {
	switch g := got.(type) {
	case map[string]any:
		w, ok := want.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is an object", at)
		}
		for k, v := range g {
			if _, has := w[k]; !has {
				return fmt.Sprintf("%s.%s is not there", at, k)
			}
			if why := within(at+"."+k, v, w[k]); why != "" {
				return why
			}
		}
		return ""
	case []any:
		w, ok := want.([]any)
		if !ok || len(w) != len(g) {
			return fmt.Sprintf("%s has %d items", at, len(g))
		}
		for i := range g {
			if why := within(fmt.Sprintf("%s[%d]", at, i), g[i], w[i]); why != "" {
				return why
			}
		}
		return ""
	}
	if !equal(got, want) {
		return fmt.Sprintf("%s is %v, not %v", at, got, want)
	}
	return ""
}

func equal(a, b any) bool { return text(a) == text(b) }

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// record plays the scenes with a real Neutron, in a network of their own, and writes down
// its answers.
func record(t *testing.T) {
	t.Helper()
	api := func(method, path, body string) map[string]any {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, *realNeutron+"/v2.0/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out := map[string]any{}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, b)
		}
		_ = json.Unmarshal(b, &out)
		return out
	}
	made := func(kind, attributes string) string {
		t.Helper()
		out := api("POST", kind+"s", `{"`+strings.ReplaceAll(kind, "-", "_")+`": {"project_id": "`+project+`", `+attributes+`}}`)
		id, _ := out[strings.ReplaceAll(kind, "-", "_")].(map[string]any)["id"].(string)
		t.Cleanup(func() {
			r, _ := http.NewRequestWithContext(context.Background(), "DELETE", *realNeutron+"/v2.0/"+kind+"s/"+id, nil)
			if resp, err := http.DefaultClient.Do(r); err == nil {
				_ = resp.Body.Close()
			}
		})
		return id
	}
	s := stage{host: *realHost, quota: func(n int) { api("PUT", "quotas/"+project, fmt.Sprintf(`{"quota": {"port": %d}}`, n)) }}
	s.group = made("security-group", `"name": "observed"`)
	s.network = made("network", `"name": "observed"`)
	s.web = made("subnet", `"name": "web", "network_id": "`+s.network+`", "ip_version": 4, "cidr": "192.168.0.0/24", "enable_dhcp": true`)
	s.small = made("subnet", `"name": "small", "network_id": "`+s.network+`", "ip_version": 4, "cidr": "192.168.1.0/30", "enable_dhcp": true`)
	b, err := json.MarshalIndent(play(t, *realNeutron, s), "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(observed, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
