package aws

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	sdkcreds "github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/test/harness/check"
)

// hasty is a clock on which waiting takes no real time: it moves on by what
// is waited for.
type hasty struct {
	mu  sync.Mutex
	now time.Time
}

func newHasty() *hasty { return &hasty{now: time.Unix(1e9, 0)} }

func (h *hasty) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hasty) Boot() time.Duration { return h.Now().Sub(time.Unix(0, 0)) }

func (h *hasty) After(d time.Duration) <-chan time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
	ch := make(chan time.Time, 1)
	ch <- h.now
	return ch
}

func (h *hasty) advance(d time.Duration) { h.After(d) }

// call is a call of the API, mostly about the ENIs eni-1 and eni-2 and the instance i-1.
type call func(context.Context, cloud.API) (any, error)

func creating(q cloud.CreateENI) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return c.CreateENI(ctx, q) }
}

func assigning(n cloud.Amount) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return c.AssignAddresses(ctx, "eni-1", n) }
}

func unassigning(things ...string) call {
	var list []netip.Prefix
	for _, t := range things {
		list = append(list, netip.MustParsePrefix(t))
	}
	return func(ctx context.Context, c cloud.API) (any, error) {
		return nil, c.UnassignAddresses(ctx, "eni-1", list)
	}
}

func attaching(ctx context.Context, c cloud.API) (any, error) {
	return c.AttachENI(ctx, "eni-1", "i-1", 2)
}
func detaching(ctx context.Context, c cloud.API) (any, error) {
	return nil, c.DetachENI(ctx, "eni-attach-1")
}
func deleting(ctx context.Context, c cloud.API) (any, error) { return nil, c.DeleteENI(ctx, "eni-1") }

func associating(vlan int) call {
	return func(ctx context.Context, c cloud.API) (any, error) {
		return c.AssociateBranch(ctx, cloud.Association{TrunkID: "eni-1", BranchID: "eni-2", VLAN: vlan}, "t")
	}
}

func disassociating(ctx context.Context, c cloud.API) (any, error) {
	return nil, c.DisassociateBranch(ctx, "trunk-assoc-1")
}

func settingGroups(groups ...string) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return nil, c.SetGroups(ctx, "eni-1", groups) }
}

func tagging(tags map[string]string) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return nil, c.Tag(ctx, "eni-1", tags) }
}

func listing(f cloud.ENIFilter) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return c.ENIs(ctx, f) }
}

func listingSubnets(f cloud.SubnetFilter) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return c.Subnets(ctx, f) }
}

func listingInstances(ids ...string) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return c.Instances(ctx, ids) }
}

func listingGroups(tags map[string]string) call {
	return func(ctx context.Context, c cloud.API) (any, error) { return c.SecurityGroups(ctx, "vpc-1", tags) }
}

func listingRoutes(ctx context.Context, c cloud.API) (any, error) { return c.RouteTables(ctx, "vpc-1") }
func limitsOf(ctx context.Context, c cloud.API) (any, error)      { return c.Limits(ctx, "x") }

// answer is one HTTP reply of the server; drop closes the connection instead.
type answer struct {
	status int
	body   string
	drop   bool
}

// ok is a successful answer to an action.
func ok(action, inner string) answer {
	return answer{status: 200, body: fmt.Sprintf(
		`<?xml version="1.0" encoding="UTF-8"?><%[1]sResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>%[2]s</%[1]sResponse>`, action, inner)}
}

// refusal is an error in EC2's form (EC2 Developer Guide, "Troubleshooting API requests").
func refusal(status int, code, message string) answer {
	return answer{status: status, body: fmt.Sprintf(
		`<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>r</RequestID></Response>`, code, message)}
}

// server plays EC2 by a script: exact bytes, in order. The last answer of an
// action is repeated.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	script map[string][]answer
	calls  []url.Values
	keys   []string // access key IDs that calls were signed with
}

func serve(t *testing.T, script map[string][]answer) *server {
	t.Helper()
	s := &server{script: script}
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(s.Close)
	return s
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	s.mu.Lock()
	s.calls = append(s.calls, form)
	key, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), "/")
	s.keys = append(s.keys, key)
	action := form.Get("Action")
	a := answer{status: 400, body: "no answer in the script for " + action}
	if left := s.script[action]; len(left) > 0 {
		a = left[0]
		if len(left) > 1 {
			s.script[action] = left[1:]
		}
	}
	s.mu.Unlock()
	if a.drop {
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = c.Close()
		}
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

// sent returns the requests for an action.
func (s *server) sent(action string) []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []url.Values
	for _, c := range s.calls {
		if c.Get("Action") == action {
			out = append(out, c)
		}
	}
	return out
}

// record is an Observer that records calls.
type record struct {
	mu      sync.Mutex
	codes   map[string]int
	limited time.Duration
}

func (r *record) Call(op, code string, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.codes == nil {
		r.codes = map[string]int{}
	}
	r.codes[op+" "+code]++
}

func (r *record) Limited(_ string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limited += d
}

func (r *record) count(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.codes[key]
}

var static = sdkcreds.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", "")

// calm waits for answers of the metadata service as long as they take; by itself
// the SDK gives up after half a second, which a busy machine may need.
var calm = &http.Client{}

// setup is how a client is made, and paced as in production.
type setup struct {
	Options
	Pace pace.Options
}

// client returns a client of the server, on a hasty clock.
func client(t *testing.T, s *server, change ...func(*setup)) cloud.API {
	t.Helper()
	o := setup{
		Options{Region: "eu-west-1", EC2Endpoint: s.URL, Credentials: static, Logger: slog.New(slog.DiscardHandler)},
		pace.Options{Clock: newHasty(), CallTimeout: time.Minute}, // a busy machine's silence is none of EC2's
	}
	return o.client(t, change...)
}

func (o setup) client(t testing.TB, change ...func(*setup)) cloud.API {
	t.Helper()
	for _, f := range change {
		f(&o)
	}
	c := check.Must(New(t.Context(), o.Options))(t)
	return pace.Cloud(c, o.Pace)
}

// rotating hands out a new key each time, "KEY1" first.
type rotating struct {
	mu sync.Mutex
	n  int
}

func (r *rotating) Retrieve(context.Context) (sdk.Credentials, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	return sdk.Credentials{AccessKeyID: fmt.Sprintf("KEY%d", r.n), SecretAccessKey: "secret", CanExpire: true, Expires: time.Now().Add(time.Hour)}, nil
}
