package ec2api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

func describeSubnets(t *testing.T, c *awsec2.Client) error {
	t.Helper()
	_, err := c.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{})
	return err
}

func TestSignatures(t *testing.T) {
	r := newRig(t, instant())
	k := r.cloud.Credentials()
	as := func(id, secret, token string) *awsec2.Client {
		return client(r.cloud, credentials.NewStaticCredentialsProvider(id, secret, token), 1)
	}
	ok(t, describeSubnets(t, as(k.AccessKeyID, k.SecretAccessKey, "")))
	wantCode(t, describeSubnets(t, as(k.AccessKeyID, "wrong", "")), "AuthFailure", http.StatusUnauthorized)
	wantCode(t, describeSubnets(t, as("AKIAUNKNOWN", k.SecretAccessKey, "")), "AuthFailure", http.StatusUnauthorized)
	wantCode(t, describeSubnets(t, as(k.AccessKeyID, k.SecretAccessKey, "token")), "AuthFailure", http.StatusUnauthorized)
	wantCode(t, describeSubnets(t, client(r.cloud, aws.AnonymousCredentials{}, 1)), "MissingAuthenticationToken", http.StatusForbidden)

	elsewhere := awsec2.New(awsec2.Options{BaseEndpoint: &r.cloud.EC2URL, Region: "eu-central-1", Credentials: static(r.cloud), RetryMaxAttempts: 1})
	wantCode(t, describeSubnets(t, elsewhere), "AuthFailure", http.StatusUnauthorized)
}

// A signature covers the body: the API detects a changed byte.
func TestTamperedBody(t *testing.T) {
	r := newRig(t, instant())
	tamper := &http.Client{Transport: tamperer{}}
	c := awsec2.New(awsec2.Options{BaseEndpoint: &r.cloud.EC2URL, Region: "lab-1", Credentials: static(r.cloud), RetryMaxAttempts: 1, HTTPClient: tamper})
	wantCode(t, describeSubnets(t, c), "AuthFailure", http.StatusUnauthorized)
}

type tamperer struct{}

func (tamperer) RoundTrip(r *http.Request) (*http.Response, error) {
	n := r.Clone(r.Context())
	body := "Action=DescribeVpcs&Version=2016-11-15"
	n.Body, n.ContentLength = http.NoBody, int64(len(body))
	n.Body = struct {
		*strings.Reader
		nopCloser
	}{strings.NewReader(body), nopCloser{}}
	return http.DefaultTransport.RoundTrip(n)
}

type nopCloser struct{}

func (nopCloser) Close() error { return nil }

func TestRoleCredentials(t *testing.T) {
	s := instant()
	s.Roles = []spec.Role{{Name: "node", Actions: []string{"ec2:Describe*"}}}
	s.IMDS.CredentialTTL = spec.Duration(time.Hour)
	fake := clock.NewFake(time.Now())
	r := newRig(t, s, vpc.WithClock(fake))
	role := roleClient(t, r.cloud, "node-a")
	ok(t, describeSubnets(t, role))
	_, err := role.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("a"))})
	wantCode(t, err, "UnauthorizedOperation", http.StatusForbidden)
	fake.Advance(59 * time.Minute)
	ok(t, describeSubnets(t, role))
	fake.Advance(time.Minute)
	wantCode(t, describeSubnets(t, role), "RequestExpired", http.StatusBadRequest)
	if err := describeSubnets(t, roleClient(t, r.cloud, "node-a")); err != nil {
		t.Fatalf("call with renewed credentials: %v", err)
	}
}

func roleClient(t *testing.T, cloud *endpoints.Cloud, instance string) *awsec2.Client {
	t.Helper()
	_, k, ok := cloud.Keys.RoleCredentials(cloud.Instances.ID(instance))
	if !ok {
		t.Fatalf("instance %s has no role credentials", instance)
	}
	return client(cloud, credentials.NewStaticCredentialsProvider(k.ID, k.Secret, k.Token), 1)
}

func TestPermissions(t *testing.T) {
	r := newRig(t, instant())
	subnet := aws.String(r.subnet("a"))
	r.cloud.API.Deny("CreateTags")
	tagged := &awsec2.CreateNetworkInterfaceInput{SubnetId: subnet, TagSpecifications: tagSpec(types.ResourceTypeNetworkInterface, "k", "v")}
	_, err := r.CreateNetworkInterface(t.Context(), tagged)
	wantCode(t, err, "UnauthorizedOperation", http.StatusForbidden)
	r.create(awsec2.CreateNetworkInterfaceInput{})
	r.cloud.API.Allow("CreateTags")
	r.create(*tagged)

	r.cloud.API.Deny("ec2:*NetworkInterface")
	_, err = r.CreateNetworkInterface(t.Context(), tagged)
	wantCode(t, err, "UnauthorizedOperation", http.StatusForbidden)
	ok(t, describeSubnets(t, r.Client))
}

func TestDryRun(t *testing.T) {
	r := newRig(t, instant())
	dry := &awsec2.CreateNetworkInterfaceInput{SubnetId: aws.String(r.subnet("a")), DryRun: aws.Bool(true)}
	_, err := r.CreateNetworkInterface(t.Context(), dry)
	wantCode(t, err, "DryRunOperation", http.StatusPreconditionFailed)
	r.cloud.API.Deny("CreateNetworkInterface")
	_, err = r.CreateNetworkInterface(t.Context(), dry)
	wantCode(t, err, "UnauthorizedOperation", http.StatusForbidden)
	if n := len(r.cloud.Snapshot().ENIs); n != 2 {
		t.Fatalf("%d ENIs after a dry run, want 2", n)
	}
}
