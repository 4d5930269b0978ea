package aws

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness/check"
)

// podRole is a pod with the environment that EKS gives it, in a lab where only the role of the service account
// kube-system/berthd may call EC2.
type podRole struct {
	*testing.T
	lab      *endpoints.Cloud
	clock    *clock.Fake
	audience string
	token    string // the path of the projected token
	sts      string // the lab's STS, which the client knows by the name of the region's
	requests func() int
	api      cloud.API
}

// RoundTrip implements http.RoundTripper: it leads requests to the region's STS to the lab's.
func (p *podRole) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == "sts.lab-1.amazonaws.com" {
		r = r.Clone(r.Context())
		r.URL.Scheme, r.URL.Host = "http", strings.TrimPrefix(p.sts, "http://")
	}
	return http.DefaultTransport.RoundTrip(r)
}

// credentialLife is how long the lab's credentials live.
const credentialLife = 2 * time.Hour

// newPodRole starts a lab and a client without a region or credentials of its own. Environ sets the rest of the pod's
// environment, and returns the service that its credentials come from.
func newPodRole(t *testing.T, audience string, environ func(*podRole) *httpreply.Front) *podRole {
	clearAWS(t)
	s := labSpec()
	s.IMDS.CredentialTTL = spec.Duration(credentialLife)
	s.Roles = []spec.Role{
		{Name: "node"},
		{Name: "berthd", Policy: deploy.NodePolicy("lab"), ServiceAccount: "kube-system/berthd"},
		{Name: "other", Actions: []string{"*"}, ServiceAccount: "shop/web"},
	}
	p := &podRole{T: t, clock: clock.NewFake(time.Now()), audience: audience, token: filepath.Join(t.TempDir(), "token")}
	p.lab = check.Must(endpoints.Serve(s, vpc.WithClock(p.clock)))(t)
	t.Cleanup(p.lab.Close)
	front := environ(p)
	p.requests = func() int { return len(front.Calls()) }
	p.project("kube-system/berthd", time.Hour)
	p.api = setup{Options{
		EC2Endpoint: p.lab.EC2URL, IMDSEndpoint: p.lab.IMDSURL("node"), Logger: slog.New(slog.DiscardHandler), HTTPClient: &http.Client{Transport: p},
	}, pace.Options{}}.client(t)
	return p
}

// project writes a token like the kubelet, which renames a new file over the old one.
func (p *podRole) project(account string, ttl time.Duration) {
	p.Helper()
	next := p.token + ".next"
	check.OK(p, os.WriteFile(next, []byte(p.lab.Cloud.Keys.ServiceAccountToken(account, p.audience, ttl)), 0o600))
	check.OK(p, os.Rename(next, p.token))
}

// calls makes n EC2 calls, which all must succeed with the role.
func (p *podRole) calls(n int) {
	p.Helper()
	for range n {
		check.Must(p.api.Instance(p.Context(), p.lab.Cloud.Instances.ID("node")))(p.T)
	}
	log := p.lab.Cloud.API.CallLog()
	if last := log[len(log)-1]; last.Code != "" || !strings.Contains(last.Principal, ":assumed-role/berthd/") {
		p.Errorf("last call: %q by %s, want success by the role berthd", last.Code, last.Principal)
	}
}

// refused makes an EC2 call, which must fail for want of credentials with an error that says why.
func (p *podRole) refused(why string) {
	p.Helper()
	sent := len(p.lab.Cloud.API.CallLog())
	_, err := p.api.Instance(p.Context(), p.lab.Cloud.Instances.ID("node"))
	check.ErrorSays(p, err, "no AWS credentials")
	check.ErrorSays(p, err, why)
	check.Equal(p, cloud.ClassOf(err), cloud.Permission, "class of %v", err)
	for _, c := range p.lab.Cloud.API.CallLog()[sent:] {
		check.Equal(p, c.Code, "RequestExpired", "a call that was sent")
	}
}

// Berth gets a role by the pod's service account, and renews its credentials and reads the token again as they
// expire. Nobody has to restart it.
func TestRolesOfServiceAccounts(t *testing.T) {
	for _, tt := range []struct {
		name, audience string
		environ        func(*podRole) *httpreply.Front
	}{
		{"IRSA", vpc.STSAudience, func(p *podRole) *httpreply.Front {
			url, front, err := p.lab.ServeSTS()
			check.OK(p, err)
			p.Setenv("AWS_ROLE_ARN", "arn:aws:iam::"+p.lab.Cloud.Account()+":role/berthd")
			p.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", p.token)
			p.sts = url
			return front
		}},
		{"Pod Identity", vpc.PodIdentityAudience, func(p *podRole) *httpreply.Front {
			url, front, err := p.lab.ServePodIdentity("node")
			check.OK(p, err)
			p.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
			p.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", p.token)
			return front
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPodRole(t, tt.audience, tt.environ)
			p.calls(5)
			check.Equal(t, p.requests(), 1, "requests for credentials")

			p.clock.Advance(credentialLife) // the credentials expire, and the kubelet has renewed the token
			p.project("kube-system/berthd", time.Hour)
			p.calls(5)
			check.Equal(t, p.requests(), 2, "requests for credentials")

			p.clock.Advance(credentialLife) // the credentials and the token expire
			p.refused("ExpiredTokenException")
			p.project("kube-system/nobody", time.Hour)
			p.refused("AccessDenied")
			check.OK(t, os.Remove(p.token))
			p.refused("token")
			p.project("kube-system/berthd", time.Hour)
			p.calls(1)
		})
	}
}

// The source of credentials does not answer: nothing is sent, and the next call tries again.
func TestPodIdentityAgentIsAway(t *testing.T) {
	var agent *httpreply.Front
	p := newPodRole(t, vpc.PodIdentityAudience, func(p *podRole) *httpreply.Front {
		url, front, err := p.lab.ServePodIdentity("node")
		check.OK(p, err)
		p.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
		p.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", p.token)
		agent = front
		return front
	})
	agent.Inject(httpreply.Fault{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailable"})
	_, err := p.api.AssignAddresses(t.Context(), "eni-1", cloud.Amount{Addresses: 1})
	check.Equal(t, cloud.ClassOf(err), cloud.Transient, "class of %v", err)
	check.Equal(t, len(p.lab.Cloud.API.CallLog()), 0, "calls sent without credentials")
	agent.ClearFaults()
	p.calls(1)
}
