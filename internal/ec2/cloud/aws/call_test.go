package aws

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/test/harness/check"
)

const (
	describeENIs = "DescribeNetworkInterfaces"
	attach       = "AttachNetworkInterface"
	noENIs       = "<networkInterfaceSet/>"
	onePrefix    = "<assignedIpv4PrefixSet><item><ipv4Prefix>10.0.0.16/28</ipv4Prefix></item></assignedIpv4PrefixSet>"
	oneAddress   = "<assignedPrivateIpAddressesSet><item><privateIpAddress>10.0.0.9</privateIpAddress></item></assignedPrivateIpAddressesSet>"
)

var (
	dropped   = answer{drop: true}
	throttled = refusal(503, "RequestLimitExceeded", "Request limit exceeded.")
	internal  = refusal(500, "InternalError", "An internal error has occurred")
)

// TestRepeats says for each kind of call and trouble how many requests are
// sent, and what comes out.
func TestRepeats(t *testing.T) {
	describe := listing(cloud.ENIFilter{})
	assign := func(ctx context.Context, c cloud.API) (any, error) {
		// A connection that was used before, as usual: net/http must not repeat either.
		if _, err := c.Subnets(ctx, cloud.SubnetFilter{}); err != nil {
			return nil, err
		}
		return assigning(cloud.Amount{Addresses: 1})(ctx, c)
	}
	assignIPv6, unassignIPv6, setGroups := assigning(cloud.Amount{IPv6: 1}), unassigning("2001:db8::9/128"), settingGroups("sg-1")
	gone := refusal(400, "InvalidNetworkInterfaceID.NotFound", "gone")
	link, noLink := ok(associate, associated("trunk-assoc-1", "eni-1", "eni-2", "7")), refusal(400, "InvalidAssociationID.NotFound", "")

	for _, tt := range []struct {
		name    string
		call    call
		action  string
		answers []answer
		sent    int
		want    cloud.Class // Unknown: success
	}{
		{"describe, reply lost", describe, describeENIs, []answer{dropped, ok(describeENIs, noENIs)}, 2, cloud.Unknown},
		{"describe, internal error", describe, describeENIs, []answer{internal, internal, ok(describeENIs, noENIs)}, 3, cloud.Unknown},
		{"describe, throttled", describe, describeENIs, []answer{throttled, throttled, ok(describeENIs, noENIs)}, 3, cloud.Unknown},
		{"describe, EC2 away for good", describe, describeENIs, []answer{dropped}, pace.TransientTries, cloud.Transient},
		{"describe, EC2 broken for good", describe, describeENIs, []answer{internal}, pace.TransientTries, cloud.Transient},
		{"describe, throttled for good", describe, describeENIs, []answer{throttled}, pace.ThrottledTries, cloud.Throttled},
		{"describe, refused", describe, describeENIs, []answer{refusal(403, "UnauthorizedOperation", "no")}, 1, cloud.Permission},
		{"assign, reply lost", assign, pace.Assign.Action, []answer{dropped, ok(pace.Assign.Action, oneAddress)}, 1, cloud.Transient},
		{"assign, internal error", assign, pace.Assign.Action, []answer{internal, ok(pace.Assign.Action, oneAddress)}, 1, cloud.Transient},
		{"assign, throttled", assign, pace.Assign.Action, []answer{throttled, ok(pace.Assign.Action, oneAddress)}, 2, cloud.Unknown},
		{"assign, throttled, then lost", assign, pace.Assign.Action, []answer{throttled, dropped, ok(pace.Assign.Action, oneAddress)}, 2, cloud.Transient},
		{"assign IPv6, reply lost", assignIPv6, pace.AssignIPv6.Action, []answer{dropped, ok(pace.AssignIPv6.Action, assignedIPv6("2001:db8::9"))}, 1, cloud.Transient},
		{"assign IPv6, throttled", assignIPv6, pace.AssignIPv6.Action, []answer{throttled, ok(pace.AssignIPv6.Action, assignedIPv6("2001:db8::9"))}, 2, cloud.Unknown},
		{"unassign IPv6, reply lost", unassignIPv6, pace.UnassignIPv6.Action, []answer{dropped, ok(pace.UnassignIPv6.Action, "")}, 2, cloud.Unknown},
		{"assign, subnet full", assign, pace.Assign.Action, []answer{refusal(400, "InsufficientFreeAddressesInSubnet", "")}, 1, cloud.SubnetFull},
		{"attach, reply lost", attaching, attach, []answer{dropped, ok(attach, "<attachmentId>a</attachmentId>")}, 1, cloud.Transient},
		{"attach, throttled", attaching, attach, []answer{throttled, ok(attach, "<attachmentId>a</attachmentId>")}, 2, cloud.Unknown},
		{"delete, reply lost", deleting, "DeleteNetworkInterface", []answer{dropped, gone}, 2, cloud.Unknown},
		{"detach, reply lost", detaching, "DetachNetworkInterface", []answer{dropped, refusal(400, "InvalidAttachmentID.NotFound", "")}, 2, cloud.Unknown},
		{"detach, throttled, then gone", detaching, "DetachNetworkInterface", []answer{throttled, refusal(400, "InvalidAttachmentID.NotFound", "")}, 2, cloud.Gone},
		{"associate, reply lost", associating(7), associate, []answer{dropped, internal, link}, 3, cloud.Unknown},
		{"associate, VLAN taken", associating(7), associate, []answer{refusal(400, "InvalidVlanId.Duplicate", "")}, 1, cloud.Conflict},
		{"disassociate, reply lost", disassociating, disassociate, []answer{dropped, noLink}, 2, cloud.Unknown},
		{"set groups, reply lost", setGroups, modify, []answer{dropped, ok(modify, "<return>true</return>")}, 2, cloud.Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{tt.action: tt.answers, "DescribeSubnets": {ok("DescribeSubnets", "<subnetSet/>")}})
			var seen record
			_, err := tt.call(t.Context(), client(t, s, func(o *setup) { o.Pace.Observer = &seen }))
			if tt.want == cloud.Unknown && err != nil {
				t.Fatalf("got %v", err)
			}
			if tt.want != cloud.Unknown && cloud.ClassOf(err) != tt.want {
				t.Errorf("got class %v (%v), want %v", cloud.ClassOf(err), err, tt.want)
			}
			check.Equal(t, len(s.sent(tt.action)), tt.sent, "requests sent")
			total := 0
			for key, n := range seen.codes {
				if strings.HasPrefix(key, tt.action+" ") {
					total += n
				}
			}
			check.Equal(t, total, tt.sent, "the observer saw %v", seen.codes)
		})
	}
}

// TestClientTokens: all repetitions of a call that carries a token carry the same one, the
// caller's if there is one.
func TestClientTokens(t *testing.T) {
	calls := map[string]struct {
		answer string
		call   func(c cloud.API, token string) (id string, err error)
	}{
		create: {"<networkInterface><networkInterfaceId>eni-1</networkInterfaceId></networkInterface>", func(c cloud.API, token string) (string, error) {
			e, err := c.CreateENI(t.Context(), cloud.CreateENI{SubnetID: "subnet-1", ClientToken: token})
			return e.ID, err
		}},
		associate: {associated("eni-1", "eni-2", "eni-3", "7"), func(c cloud.API, token string) (string, error) {
			a, err := c.AssociateBranch(t.Context(), cloud.Association{TrunkID: "eni-2", BranchID: "eni-3", VLAN: 7}, token)
			return a.ID, err
		}},
	}
	for action, tt := range calls {
		for _, token := range []string{"", "intent-7"} {
			s := serve(t, map[string][]answer{action: {dropped, throttled, ok(action, tt.answer)}})
			id, err := tt.call(client(t, s), token)
			if err != nil || id != "eni-1" {
				t.Fatalf("%s: got %s, %v", action, id, err)
			}
			sent := s.sent(action)
			if len(sent) != 3 {
				t.Fatalf("%s: %d requests, want 3", action, len(sent))
			}
			first := sent[0].Get("ClientToken")
			if first == "" || token != "" && first != token {
				t.Errorf("%s: client token %q, want %q", action, first, token)
			}
			for _, r := range sent {
				if got := r.Get("ClientToken"); got != first {
					t.Errorf("%s: a repetition has token %q, the first request %q", action, got, first)
				}
			}
		}
	}
}

// TestExpiredCredentials: a refusal for expired credentials fetches new ones
// and makes the call again, also one that is not idempotent; and only once.
func TestExpiredCredentials(t *testing.T) {
	old := refusal(400, "RequestExpired", "Request has expired.")
	t.Run("renewed", func(t *testing.T) {
		s := serve(t, map[string][]answer{pace.Assign.Action: {old, ok(pace.Assign.Action, oneAddress)}})
		c := client(t, s, func(o *setup) { o.Credentials = &rotating{} })
		if _, err := c.AssignAddresses(t.Context(), "eni-1", cloud.Amount{Addresses: 1}); err != nil {
			t.Fatal(err)
		}
		if len(s.keys) != 2 || s.keys[0] != "KEY1" || s.keys[1] != "KEY2" {
			t.Errorf("signed with %v, want KEY1, then KEY2", s.keys)
		}
	})
	t.Run("still expired", func(t *testing.T) {
		s := serve(t, map[string][]answer{pace.Assign.Action: {old}})
		c := client(t, s, func(o *setup) { o.Credentials = &rotating{} })
		_, err := c.AssignAddresses(t.Context(), "eni-1", cloud.Amount{Addresses: 1})
		if cloud.ClassOf(err) != cloud.Permission || len(s.sent(pace.Assign.Action)) != 2 {
			t.Errorf("got %v after %d requests, want class permission after 2", err, len(s.sent(pace.Assign.Action)))
		}
	})
}

// TestNoCredentials takes the credentials from a metadata service in trouble.
func TestNoCredentials(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		want   cloud.Class
	}{{"no role", 404, cloud.Permission}, {"metadata service broken", 500, cloud.Transient}} {
		t.Run(tt.name, func(t *testing.T) {
			clearAWS(t)
			imds := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
					_, _ = w.Write([]byte("token"))
					return
				}
				w.WriteHeader(tt.status)
			}))
			t.Cleanup(imds.Close)
			s := serve(t, nil)
			var seen record
			c := client(t, s, func(o *setup) {
				o.Credentials, o.IMDSEndpoint, o.HTTPClient, o.Pace.Observer = nil, imds.URL, calm, &seen
			})
			_, err := c.AssignAddresses(t.Context(), "eni-1", cloud.Amount{Addresses: 1})
			if cloud.ClassOf(err) != tt.want {
				t.Errorf("class %v, want %v: %v", cloud.ClassOf(err), tt.want, err)
			}
			check.ErrorSays(t, err, "IAM role")
			check.Equal(t, len(s.calls), 0, "unsigned calls were sent")
			check.Equal(t, seen.count(pace.Assign.Action+" "+pace.CodeCredentials), 1, "the observer saw %v", seen.codes)
		})
	}
}

// clearAWS takes the machine's own AWS settings out of a test.
func clearAWS(t testing.TB) {
	t.Helper()
	for _, k := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_CA_BUNDLE",
	} {
		t.Setenv(k, "")
	}
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
}

// TestBlackHole: an endpoint that never answers costs one time-out.
func TestBlackHole(t *testing.T) {
	release := make(chan struct{})
	hole := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hole.Close)
	t.Cleanup(func() { close(release) })
	var seen record
	c := client(t, &server{Server: hole}, func(o *setup) {
		o.Pace.CallTimeout, o.Pace.Clock, o.Pace.Observer = 100*time.Millisecond, clock.Real{}, &seen
	})
	_, err := c.ENIs(t.Context(), cloud.ENIFilter{})
	if cloud.ClassOf(err) != cloud.Transient || err == nil || !strings.Contains(err.Error(), "no reply within 100ms") {
		t.Errorf("got %v (class %v)", err, cloud.ClassOf(err))
	}
	check.Equal(t, seen.count(describeENIs+" "+pace.CodeNoReply), 1, "the observer saw %v", seen.codes)
}

// TestCanceled: the caller's context is honoured on the wire and in the
// limiter's queue, where the call had no effect for sure.
func TestCanceled(t *testing.T) {
	s := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, noENIs)}})
	c := client(t, s, func(o *setup) {
		o.Pace.Clock = clock.NewFake(time.Unix(1e9, 0))
		o.Pace.Ceilings = map[string]pace.Limit{describeENIs: {Rate: 1, Burst: 1}}
	})
	if _, err := c.ENIs(t.Context(), cloud.ENIFilter{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.ENIs(ctx, cloud.ENIFilter{})
	if cloud.ClassOf(err) != cloud.Throttled || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "not sent") {
		t.Errorf("in the queue: %v (class %v)", err, cloud.ClassOf(err))
	}
	check.Equal(t, len(s.sent(describeENIs)), 1, "requests")
}

func TestNewRefusesBadOptions(t *testing.T) {
	clearAWS(t)
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Region: "x", EC2Endpoint: "ec2.example"}, "EC2 endpoint"},
		{Options{Region: "x", EC2Endpoint: "ftp://x"}, "EC2 endpoint"},
		{Options{Region: "x", IMDSEndpoint: "http://"}, "metadata endpoint"},
		{Options{IMDSEndpoint: "http://127.0.0.1:1", MetadataTimeout: time.Millisecond}, "AWS_REGION"},
	} {
		_, err := New(t.Context(), tt.o)
		check.ErrorSays(t, err, tt.want)
	}
}

var _ sdk.CredentialsProvider = (*rotating)(nil)

// A machine whose clock is hours off is refused once by EC2, as its signature is of
// another time (five minutes are allowed, IAM User Guide, "Signature Version 4"). The
// calls after that are signed with EC2's time, which its answers tell.
func TestWrongClock(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration // EC2's clock is, of this machine's
		code  string
	}{
		"three hours behind": {3 * time.Hour, "SignatureDoesNotMatch"},
		"three hours ahead":  {-3 * time.Hour, "RequestExpired"},
		"of 1970":            {55 * 365 * 24 * time.Hour, "AuthFailure"},
	} {
		t.Run(name, func(t *testing.T) {
			refused := 0
			s := &server{}
			s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				form, _ := url.ParseQuery(string(body))
				now := time.Now().Add(c.ahead)
				a := ok(form.Get("Action"), oneAddress)
				if signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err != nil || now.Sub(signed).Abs() > 5*time.Minute {
					refused++
					a = refusal(http.StatusForbidden, c.code, "Signature not yet current or expired")
				}
				w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
				w.Header().Set("Content-Type", "text/xml")
				w.WriteHeader(a.status)
				_, _ = io.WriteString(w, a.body)
			}))
			t.Cleanup(s.Close)
			api := client(t, s)
			assign := func() error {
				_, err := api.AssignAddresses(t.Context(), "eni-1", cloud.Amount{Addresses: 1})
				return err
			}
			if err := assign(); err != nil && cloud.ClassOf(err) != cloud.Permission {
				t.Errorf("the first call: %v", err)
			}
			for range 3 {
				if err := assign(); err != nil {
					t.Errorf("a call after the first: %v", err)
				}
			}
			check.Equal(t, refused, 1, "refused calls")
		})
	}
}
