package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/test/harness/check"
)

// hostile plays an EC2 whose answers are made by a function.
func hostile(t *testing.T, answer http.HandlerFunc, change ...func(*setup)) cloud.API {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/xml")
		answer(w, r)
	}))
	t.Cleanup(h.Close)
	return client(t, &server{Server: h}, change...)
}

// byteByByte writes a letter until the client closes the connection.
func byteByByte(w http.ResponseWriter, letter string, pause time.Duration) {
	for {
		if _, err := io.WriteString(w, letter); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		<-time.After(pause)
	}
}

// doubtful fails unless err is of class Transient and has a text.
func doubtful(t *testing.T, err error, says string) {
	t.Helper()
	if cloud.ClassOf(err) != cloud.Transient || !strings.Contains(fmt.Sprint(err), says) {
		t.Errorf("got %v of class %v, want a transient one that says %q", err, cloud.ClassOf(err), says)
	}
}

// The size of replies, and of what is kept of them, is limited.
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
			c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.head)
				for range tt.times {
					if _, err := w.Write(tt.body); err != nil {
						return
					}
				}
			})
			_, err := c.ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
			doubtful(t, err, tt.says)
		})
	}
}

// Replies that would take too long are refused likewise.
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
	c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<DescribeNetworkInterfacesResponse>")
		byteByByte(w, " ", time.Millisecond)
	}, func(o *setup) { o.Pace.CallTimeout = 200 * time.Millisecond })
	_, err := c.ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
	doubtful(t, err, "")
}

// Nobody who answers for EC2 or the metadata service sends Berth, and what it
// asks for, to another place.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, "")}})
	away := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(away.Close)
	clearAWS(t)
	c := client(t, &server{Server: away})
	_, err := c.ENIs(t.Context(), cloud.ENIFilter{})
	doubtful(t, err, "")
	m := NewMetadata(Options{IMDSEndpoint: away.URL, Logger: slog.New(slog.DiscardHandler)})
	if _, err = m.once(t.Context(), "instance-id"); err == nil || !strings.Contains(err.Error(), "not followed") {
		t.Errorf("the metadata service sent it elsewhere: got %v", err)
	}
	// The credentials of the instance's role too.
	o := Options{Region: "eu-west-1", EC2Endpoint: away.URL, IMDSEndpoint: away.URL, Logger: slog.New(slog.DiscardHandler)}
	c = setup{o, pace.Options{Clock: newHasty()}}.client(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2) // the SDK would try for ten seconds
	defer cancel()
	if _, err = c.ENIs(ctx, cloud.ENIFilter{}); err == nil {
		t.Error("ENIs without credentials")
	}
	check.Equal(t, len(elsewhere.calls), 0, "requests that went elsewhere")
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
		byteByByte(w, "i", 10*time.Millisecond)
	}))
	t.Cleanup(h.Close)
	m := NewMetadata(Options{IMDSEndpoint: h.URL, HTTPClient: calm, Logger: slog.New(slog.DiscardHandler), MetadataTimeout: time.Second / 2})
	_, err := m.Identity(t.Context())
	doubtful(t, err, "instance-id")
}

// inMemory answers every request with one reply.
type inMemory struct {
	status int
	body   string
}

func (m inMemory) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: m.status, Request: r, Header: http.Header{"Content-Type": {"text/xml"}, "X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"60"}},
		Body: io.NopCloser(strings.NewReader(m.body)),
	}, nil
}

// FuzzEC2Answers feeds replies to every reading call, through the SDK's own
// parser: whatever comes, it is a value that makes sense or a *cloud.Error.
func FuzzEC2Answers(f *testing.F) {
	for i, body := range []string{
		ok(describeENIs, "<networkInterfaceSet>"+fullENI+"</networkInterfaceSet>").body,
		ok("DescribeSubnets", "<subnetSet><item><subnetId>s</subnetId><cidrBlock>10.0.1.0/24</cidrBlock><availableIpAddressCount>1</availableIpAddressCount></item></subnetSet>").body,
		ok("DescribeInstances", "<reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>running</name></instanceState></item></instancesSet></item></reservationSet>").body,
		typeInfo("x", "<hypervisor>nitro</hypervisor>", "<maximumNetworkInterfaces>7</maximumNetworkInterfaces><ipv4AddressesPerInterface>8</ipv4AddressesPerInterface>").body,
		ok("CreateNetworkInterface", "<networkInterface><networkInterfaceId>eni-1</networkInterfaceId></networkInterface>").body,
		ok(attach, "<attachmentId>a</attachmentId>").body,
		ok(pace.Assign.Action, oneAddress).body,
		ok(pace.Assign.Action, onePrefix).body,
		ok(pace.AssignIPv6.Action, assignedIPv6("2001:db8::9")).body,
		ok(pace.AssignIPv6.Action, assignedIPv6Prefixes("2001:db8:0:0:1::/80")).body,
		ok(associate, associated("trunk-assoc-1", "eni-1", "eni-2", "7")).body,
	} {
		f.Add(uint8(i), uint16(200), body)
	}
	clearAWS(f)
	f.Add(uint8(0), uint16(503), throttled.body)
	f.Add(uint8(0), uint16(500), "<Response><Errors><Error/></Errors>")
	f.Fuzz(func(t *testing.T, call uint8, status uint16, body string) {
		c := setup{
			Options{
				Region: "r", EC2Endpoint: "http://ec2.test", Credentials: static, HTTPClient: inMemory{100 + int(status)%500, body},
				Logger: slog.New(slog.DiscardHandler),
			},
			pace.Options{Clock: newHasty()},
		}.client(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exercised[int(call)%len(exercised)](ctx, c)
		if err == nil {
			sound(t, out)
		}
		if _, ok := errors.AsType[*cloud.Error](err); err != nil && !ok {
			t.Errorf("error %v is no *cloud.Error", err)
		}
	})
}

// exercised are the calls whose replies are fuzzed.
var exercised = []call{
	listing(cloud.ENIFilter{}), listingSubnets(cloud.SubnetFilter{}), listingInstances("i-1"), limitsOf, creating(cloud.CreateENI{SubnetID: "s"}), attaching,
	assigning(cloud.Amount{Addresses: 1}), assigning(cloud.Amount{Prefixes: 1}), assigning(cloud.Amount{IPv6: 1}), assigning(cloud.Amount{IPv6Prefixes: 1}), associating(7),
}

// sound checks what came out of a call.
func sound(t *testing.T, out any) {
	t.Helper()
	switch out := out.(type) {
	case []cloud.ENI:
		for _, e := range out {
			soundENI(t, e)
		}
	case cloud.ENI:
		soundENI(t, out)
	case []cloud.Subnet:
		for _, s := range out {
			if s.ID == "" || s.Free < 0 || s.CIDR != s.CIDR.Masked() {
				t.Errorf("got %+v", s)
			}
		}
	case cloud.Limits:
		if out.MaxENIs < 1 || out.IPv4PerENI < 1 || out.IPv6PerENI < 0 {
			t.Errorf("got %+v", out)
		}
	case string:
		if out == "" {
			t.Error("no attachment ID")
		}
	case []netip.Prefix:
		for _, p := range out {
			f := ipv6
			if p.Addr().Is4() {
				f = ipv4
			}
			if !f.has(p.Addr()) || p != p.Masked() || !p.IsSingleIP() && p.Bits() != f.delegated {
				t.Errorf("got %v", p)
			}
		}
	case cloud.Association:
		if want := (cloud.Association{ID: out.ID, TrunkID: "eni-1", BranchID: "eni-2", VLAN: 7}); out.ID == "" || out != want {
			t.Errorf("got %+v", out)
		}
	}
}

func soundENI(t *testing.T, e cloud.ENI) {
	t.Helper()
	if e.ID == "" || e.MAC != nil && len(e.MAC) != 6 || e.Primary.IsValid() && !e.Primary.Is4() {
		t.Errorf("got %+v", e)
	}
	for _, a := range e.Addresses {
		if !a.Is4() {
			t.Errorf("address %v", a)
		}
	}
	for _, p := range e.Prefixes {
		check.Equal(t, p.Bits(), ipv4.delegated, "prefix %v", p)
	}
	for _, p := range e.IPv6Prefixes {
		if p.Bits() != ipv6.delegated || !p.Addr().Is6() {
			t.Errorf("prefix %v", p)
		}
	}
}

// FuzzIdentity feeds answers of the metadata service.
func FuzzIdentity(f *testing.F) {
	clearAWS(f)
	f.Add("i-1", "m5.large", "02:00:00:00:00:0a", "10.0.0.10", "10.0.0.0/16\n10.1.0.0/16", "2001:db8::/56")
	f.Add("", "<html>", "02:00:00:00:00:0a:0b:0c", "::ffff:10.0.0.10", "0.0.0.0/0", "fe80::1%1/64")
	f.Fuzz(func(t *testing.T, id, kind, mac, addr, blocks, v6 string) {
		paths := map[string]string{
			"instance-id": id, "instance-type": kind, "placement/region": "r", "placement/availability-zone": "ra", "mac": mac, "local-ipv4": addr,
		}
		parsed, _ := net.ParseMAC(mac)
		of := "network/interfaces/macs/" + parsed.String() + "/"
		paths[of+"vpc-id"], paths[of+"subnet-id"], paths[of+"vpc-ipv4-cidr-blocks"], paths[of+"vpc-ipv6-cidr-blocks"] = "vpc-1", "subnet-1", blocks, v6
		m := NewMetadata((&metadataServer{paths: paths}).options())
		got, err := m.Identity(t.Context())
		if err != nil {
			if _, ok := errors.AsType[*cloud.Error](err); !ok {
				t.Errorf("error %v is no *cloud.Error", err)
			}
			return
		}
		if got.InstanceID == "" || len(got.PrimaryMAC) != 6 || !got.PrimaryIPv4.Is4() || len(got.VPCCIDRs) == 0 {
			t.Errorf("got %+v", got)
		}
	})
}
