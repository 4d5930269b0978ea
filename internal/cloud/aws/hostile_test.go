package aws

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// hostile plays an EC2 whose answers are made by a function, which gets the
// number of the call from 1.
func hostile(t *testing.T, answer func(w http.ResponseWriter, call int64)) (*Client, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/xml")
		answer(w, calls.Add(1))
	}))
	t.Cleanup(h.Close)
	return client(t, &server{Server: h}), &calls
}

// doubtful fails unless err is of class Transient and says what is wrong.
func doubtful(t *testing.T, err error, says string) {
	t.Helper()
	if cloud.ClassOf(err) != cloud.Transient || !strings.Contains(fmt.Sprint(err), says) {
		t.Errorf("got %v of class %v, want a transient one that says %q", err, cloud.ClassOf(err), says)
	}
}

// A listing ends, whatever EC2 says of the next page.
func TestListingsEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		token func(call int64) string
		most  int64 // calls
		says  string
	}{
		{"the same page for ever", func(int64) string { return "a" }, 2, "nextToken"},
		{"two pages in turn", func(call int64) string { return string(rune('a' + call%2)) }, 3, "nextToken"},
		{"ever new pages", func(call int64) string { return fmt.Sprint("page-", call) }, maxPages, "pages"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, calls := hostile(t, func(w http.ResponseWriter, call int64) {
				next := "<nextToken>" + tt.token(call) + "</nextToken>"
				if call > 2*maxPages { // a client that goes on for ever
					next = ""
				}
				_, _ = io.WriteString(w, ok(describeENIs, next).body)
			})
			_, err := c.ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
			doubtful(t, err, tt.says)
			if n := calls.Load(); n > tt.most {
				t.Errorf("%d calls, want at most %d", n, tt.most)
			}
		})
	}
}

// What is read of an answer, and kept of it in memory, is bounded.
func TestAnswersAreBounded(t *testing.T) {
	blank := []byte(strings.Repeat(" ", 1<<20))
	for _, tt := range []struct {
		name   string
		status int
		head   string
		body   []byte // over and over
		times  int
		says   string
	}{
		{"a large refusal", 500, "<Response>", blank, maxRefusal>>20 + 8, "bytes"},
		{"deep elements", 200, "<DescribeNetworkInterfacesResponse>", []byte(strings.Repeat("<a>", 1000)), 4000, "deep"},
		{"deep elements behind a comment", 200, "<DescribeNetworkInterfacesResponse>", []byte("<a><!-- </a> -->"), 4000, "declaration"},
		{"deep elements behind an instruction", 200, "<DescribeNetworkInterfacesResponse>", []byte("<a><?a ></a ?>"), 4000, "declaration"},
		{"deep elements behind an attribute", 200, "<DescribeNetworkInterfacesResponse>", []byte(`<a b="/>">`), 4000, "deep"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var wrote atomic.Int64
			c, _ := hostile(t, func(w http.ResponseWriter, _ int64) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.head)
				for range tt.times {
					n, err := w.Write(tt.body)
					wrote.Add(int64(n))
					if err != nil {
						return
					}
				}
			})
			_, err := c.ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
			doubtful(t, err, tt.says)
		})
	}
}

// What cannot be sent in a moment is refused likewise.
func TestReadersOfAnswersAreBounded(t *testing.T) {
	endless := func(text string) io.Reader { return &repeat{text: text} }
	n, err := io.Copy(io.Discard, &bounded{from: endless(" "), most: maxAnswer, left: maxAnswer})
	if n != maxAnswer || err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("read %d bytes, then %v", n, err)
	}
	if n, err := io.Copy(io.Discard, &bounded{from: strings.NewReader("four"), most: 4, left: 4}); n != 4 || err != nil {
		t.Errorf("read %d of 4 bytes, then %v", n, err)
	}
	s := &shallow{from: endless("<item/>")}
	if _, err := io.Copy(io.Discard, s); err == nil || !strings.Contains(err.Error(), "elements") || s.elements > maxElements+1 {
		t.Errorf("%d elements, then %v", s.elements, err)
	}
	if _, err := io.Copy(io.Discard, &shallow{from: strings.NewReader("<?xml version='1.0'?><a b='>' c=\"/>\">1 > 0<d/></a>")}); err != nil {
		t.Errorf("an answer as it should be: %v", err)
	}
}

// repeat reads a text over and over.
type repeat struct {
	text string
	at   int
}

// Read implements io.Reader.
func (r *repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.text[r.at]
		r.at = (r.at + 1) % len(r.text)
	}
	return len(p), nil
}

// An answer that comes byte by byte is given up in time.
func TestAnswersByteByByte(t *testing.T) {
	c, _ := hostile(t, func(w http.ResponseWriter, _ int64) {
		_, _ = io.WriteString(w, "<DescribeNetworkInterfacesResponse>")
		for {
			if _, err := io.WriteString(w, " "); err != nil {
				return
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			<-time.After(time.Millisecond)
		}
	})
	c.pace = pace.NewSet(pace.Options{CallTimeout: 200 * time.Millisecond, Clock: newHasty()})
	_, err := c.ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
	doubtful(t, err, "")
}

// elsewhere is a place that nobody may be sent to.
func elsewhere(t *testing.T, body string) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(h.Close)
	return h.URL, asked
}

// Nobody who answers for EC2 or the metadata service sends Berth, and what it
// asks for, to another place.
func TestRedirectsAreNotFollowed(t *testing.T) {
	url, asked := elsewhere(t, ok(describeENIs, "").body)
	away := httptest.NewServer(http.RedirectHandler(url, http.StatusTemporaryRedirect))
	t.Cleanup(away.Close)
	clearAWS(t)
	c := client(t, &server{Server: away})
	_, err := c.ENIs(t.Context(), cloud.ENIFilter{})
	doubtful(t, err, "")
	m := NewMetadata(Options{IMDSEndpoint: away.URL, Logger: slog.New(slog.DiscardHandler), Clock: newHasty()})
	if _, err = m.once(patiently(t), "instance-id"); err == nil || !strings.Contains(err.Error(), "not followed") {
		t.Errorf("the metadata service sent it elsewhere: got %v", err)
	}
	// The credentials of the instance's role too.
	o := Options{Region: "eu-west-1", EC2Endpoint: away.URL, IMDSEndpoint: away.URL, Logger: slog.New(slog.DiscardHandler), Clock: newHasty()}
	if c, err = New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2) // the SDK would try for ten seconds
	defer cancel()
	if _, err = c.ENIs(ctx, cloud.ENIFilter{}); err == nil {
		t.Error("ENIs without credentials")
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// The metadata service cannot fill the memory by a token either.
func TestMetadataAnswersAreBounded(t *testing.T) {
	clearAWS(t)
	var wrote atomic.Int64
	blank := []byte(strings.Repeat("a", 1<<16))
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		for range 1024 { // 64 MiB
			n, err := w.Write(blank)
			wrote.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	t.Cleanup(h.Close)
	m := NewMetadata(Options{IMDSEndpoint: h.URL, HTTPClient: calm, Logger: slog.New(slog.DiscardHandler), Clock: newPatient()})
	ctx, cancel := context.WithCancel(patiently(t))
	defer cancel()
	if _, err := m.once(ctx, "instance-id"); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("got %v, want one that says how many bytes an answer may have", err)
	}
}

// A metadata service that answers byte by byte is given up in time.
func TestMetadataByteByByte(t *testing.T) {
	clearAWS(t)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		if r.URL.Path == "/latest/api/token" {
			_, _ = io.WriteString(w, "token")
			return
		}
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, "i"); err != nil {
				return
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			<-time.After(10 * time.Millisecond)
		}
	}))
	t.Cleanup(h.Close)
	m := NewMetadata(Options{IMDSEndpoint: h.URL, HTTPClient: calm, Logger: slog.New(slog.DiscardHandler), MetadataTimeout: time.Second / 2})
	_, err := m.Identity(t.Context())
	doubtful(t, err, "instance-id")
}

// What a listing says is compared with what was asked for and what can be.
func TestListingsAreComparedWithWhatCanBe(t *testing.T) {
	eni := func(id, instance string) string {
		return "<item><networkInterfaceId>" + id + "</networkInterfaceId><vpcId>vpc-1</vpcId><attachment><attachmentId>a</attachmentId>" +
			"<instanceId>" + instance + "</instanceId><deviceIndex>1</deviceIndex></attachment></item>"
	}
	enis := func(items ...string) string {
		return "<networkInterfaceSet>" + strings.Join(items, "") + "</networkInterfaceSet>"
	}
	subnet := func(id, vpc, zone, cidr, free string) string {
		return "<item><subnetId>" + id + "</subnetId><vpcId>" + vpc + "</vpcId><availabilityZone>" + zone + "</availabilityZone><cidrBlock>" + cidr +
			"</cidrBlock><availableIpAddressCount>" + free + "</availableIpAddressCount></item>"
	}
	subnets := func(items ...string) string { return "<subnetSet>" + strings.Join(items, "") + "</subnetSet>" }
	instance := func(id, state string) string {
		return "<item><instancesSet><item><instanceId>" + id + "</instanceId><instanceState><name>" + state + "</name></instanceState></item></instancesSet></item>"
	}
	instances := func(items ...string) string {
		return "<reservationSet>" + strings.Join(items, "") + "</reservationSet>"
	}
	table := func(id, vpc string, associations ...string) string {
		return "<item><routeTableId>" + id + "</routeTableId><vpcId>" + vpc + "</vpcId><associationSet>" + strings.Join(associations, "") + "</associationSet></item>"
	}
	tables := func(items ...string) string {
		return "<routeTableSet>" + strings.Join(items, "") + "</routeTableSet>"
	}
	const main, one = "<item><main>true</main></item>", "<item><main>false</main><subnetId>subnet-1</subnetId></item>"
	limits := func(enis, addresses string) string {
		return "<instanceTypeSet><item><instanceType>x</instanceType><hypervisor>nitro</hypervisor><networkInfo><maximumNetworkInterfaces>" + enis +
			"</maximumNetworkInterfaces><ipv4AddressesPerInterface>" + addresses + "</ipv4AddressesPerInterface></networkInfo></item></instanceTypeSet>"
	}

	listENIs := func(f cloud.ENIFilter) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error { _, err := c.ENIs(ctx, f); return err }
	}
	listSubnets := func(f cloud.SubnetFilter) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error { _, err := c.Subnets(ctx, f); return err }
	}
	two := func(ctx context.Context, c *Client) error {
		_, err := c.Instances(ctx, []string{"i-1", "i-2"})
		return err
	}
	routes := func(ctx context.Context, c *Client) error { _, err := c.RouteTables(ctx, "vpc-1"); return err }
	describe := func(ctx context.Context, c *Client) error { _, err := c.describeType(ctx, "x"); return err }
	home := cloud.SubnetFilter{VPCID: "vpc-1", Zone: "a"}
	for _, tt := range []struct {
		name, action, answer string
		call                 func(context.Context, *Client) error
		says                 string // empty: it fits
	}{
		{"ENIs", describeENIs, enis(eni("eni-1", "i-1"), eni("eni-2", "i-2")), listENIs(cloud.ENIFilter{VPCID: "vpc-1"}), ""},
		{"an ENI twice, as it is", describeENIs, enis(eni("eni-1", "i-1"), eni("eni-1", "i-1")), listENIs(cloud.ENIFilter{}), ""},
		{"an ENI on two instances", describeENIs, enis(eni("eni-1", "i-1"), eni("eni-1", "i-2")), listENIs(cloud.ENIFilter{}), "eni-1"},
		{"an ENI of another VPC", describeENIs, enis(eni("eni-1", "i-1")), listENIs(cloud.ENIFilter{VPCID: "vpc-2"}), "vpcId"},
		{"an attached ENI for a detached one", describeENIs, enis(eni("eni-1", "i-1")), listENIs(cloud.ENIFilter{Status: "available"}), "attachment"},

		{"subnets", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "251")), listSubnets(home), ""},
		{"a free count below zero", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "-1")), listSubnets(home), "availableIpAddressCount"},
		{"a free count of 2^31", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "2147483648")), listSubnets(home), ""},
		{"more free than there are", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "257")), listSubnets(home), "availableIpAddressCount"},
		{"a subnet of the world", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "a", "0.0.0.0/0", "251")), listSubnets(home), "cidrBlock"},
		{"a subnet of another VPC", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-2", "a", "10.0.0.0/24", "251")), listSubnets(home), "vpcId"},
		{"a subnet of another zone", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "b", "10.0.0.0/24", "251")), listSubnets(home), "availabilityZone"},
		{"another subnet", pace.DescribeSubnets.Action, subnets(subnet("subnet-2", "vpc-1", "a", "10.0.0.0/24", "251")), listSubnets(cloud.SubnetFilter{IDs: []string{"subnet-1"}}), "subnetId"},
		{"a subnet without the tag", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "251")), listSubnets(cloud.SubnetFilter{Tags: map[string]string{"a": "b"}}), "tagSet"},
		{"a subnet twice", pace.DescribeSubnets.Action, subnets(subnet("subnet-1", "vpc-1", "a", "10.0.0.0/24", "251"), subnet("subnet-1", "vpc-1", "a", "10.1.0.0/24", "2")), listSubnets(home), "subnet-1"},

		{"instances", pace.DescribeInstances.Action, instances(instance("i-1", "running"), instance("i-2", "stopped")), two, ""},
		{"another instance", pace.DescribeInstances.Action, instances(instance("i-1", "running"), instance("i-3", "running")), two, "i-3"},
		{"an instance in two states", pace.DescribeInstances.Action, instances(instance("i-1", "running"), instance("i-1", "terminated")), two, "i-1"},

		{"route tables", pace.DescribeRouteTables.Action, tables(table("rtb-1", "vpc-1", main), table("rtb-2", "vpc-1", one)), routes, ""},
		{"a route table of another VPC", pace.DescribeRouteTables.Action, tables(table("rtb-1", "vpc-2", main)), routes, "vpcId"},
		{"two main route tables", pace.DescribeRouteTables.Action, tables(table("rtb-1", "vpc-1", main), table("rtb-2", "vpc-1", main)), routes, "main"},
		{"two route tables of a subnet", pace.DescribeRouteTables.Action, tables(table("rtb-1", "vpc-1", one), table("rtb-2", "vpc-1", one)), routes, "subnet-1"},

		{"limits", pace.DescribeTypes.Action, limits("4", "15"), describe, ""},
		{"no ENIs", pace.DescribeTypes.Action, limits("0", "15"), describe, "at least one"},
		{"fewer than no addresses", pace.DescribeTypes.Action, limits("4", "-1"), describe, "not negative"},
		{"a million ENIs", pace.DescribeTypes.Action, limits("1000000", "15"), describe, "maximumNetworkInterfaces"},
		{"two billion addresses", pace.DescribeTypes.Action, limits("4", "2147483647"), describe, "ipv4AddressesPerInterface"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{tt.action: {ok(tt.action, tt.answer)}})
			err := tt.call(t.Context(), client(t, s))
			switch {
			case tt.name == "a free count of 2^31":
				if err == nil {
					t.Error("it was taken")
				}
			case tt.says == "" && err != nil:
				t.Error(err)
			case tt.says != "":
				doubtful(t, err, tt.says)
			}
		})
	}
}
