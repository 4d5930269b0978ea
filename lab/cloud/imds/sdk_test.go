package imds_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	awsimds "github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func serve(t *testing.T, s spec.Spec, opts ...vpc.Option) *endpoints.Cloud {
	t.Helper()
	cloud, err := endpoints.Serve(s, opts...)
	ok(t, err)
	t.Cleanup(cloud.Close)
	return cloud
}

func instant() spec.Spec {
	s := spec.Default()
	s.Delays, s.Consistency = spec.Delays{}, spec.Consistency{}
	return s
}

// client has no timeouts except the deadline of the context; the SDK's own are half a second and five.
func client(cloud *endpoints.Cloud, instance string) *awsimds.Client {
	return awsimds.New(awsimds.Options{Endpoint: cloud.IMDSURL(instance), Retryer: aws.NopRetryer{}, HTTPClient: &http.Client{}})
}

func patiently(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func read(t *testing.T, c *awsimds.Client, path string) (string, error) {
	t.Helper()
	out, err := c.GetMetadata(patiently(t), &awsimds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(out.Content)
	ok(t, err)
	return string(b), nil
}

func wantStatus(t *testing.T, err error, status int) {
	t.Helper()
	var resp *smithyhttp.ResponseError
	if !errors.As(err, &resp) || resp.HTTPStatusCode() != status {
		t.Fatalf("error = %v, want HTTP %d", err, status)
	}
}

func TestMetadata(t *testing.T) {
	s := instant()
	s.VPCs[0].CIDRs = append(s.VPCs[0].CIDRs, netip.MustParsePrefix("100.64.0.0/16"))
	s.VPCs[0].IPv6 = []netip.Prefix{netip.MustParsePrefix("2600:1f14:abc:de00::/56")}
	s.VPCs[0].Subnets[0].IPv6 = netip.MustParsePrefix("2600:1f14:abc:de00::/64")
	s.Instances[0].Secondary, s.Instances[0].Prefixes, s.Instances[0].IPv6 = 2, 1, 1
	s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 2}}
	cloud := serve(t, s)
	snapshot := cloud.Snapshot()
	i, _ := snapshot.Instance("node-a")
	enis := snapshot.InstanceENIs(i.ID)
	e := enis[0]
	six, err := cloud.ENIs.Assign(e.ID, vpc.AddressRequest{IPv6PrefixCount: 1})
	ok(t, err)
	at := "network/interfaces/macs/" + e.MAC.String() + "/"
	for path, want := range map[string]string{
		"instance-id":                     i.ID,
		"instance-type":                   "m5.large",
		"local-ipv4":                      e.Primary.String(),
		"mac":                             e.MAC.String(),
		"placement/availability-zone":     "lab-1a",
		"placement/region":                "lab-1",
		at + "device-number":              "0",
		at + "interface-id":               e.ID,
		at + "local-ipv4s":                e.Primary.String() + "\n" + e.Secondary[0].String() + "\n" + e.Secondary[1].String(),
		at + "ipv4-prefix":                e.Prefixes[0].String(),
		"ipv6":                            e.IPv6[0].String(),
		at + "ipv6s":                      e.IPv6[0].String(),
		at + "ipv6-prefix":                six.IPv6Prefixes[0].String(),
		at + "subnet-id":                  e.SubnetID,
		at + "subnet-ipv4-cidr-block":     "10.0.0.0/22",
		at + "subnet-ipv6-cidr-blocks":    "2600:1f14:abc:de00::/64",
		at + "vpc-id":                     e.VPCID,
		at + "vpc-ipv4-cidr-block":        "10.0.0.0/16",
		at + "vpc-ipv4-cidr-blocks":       "10.0.0.0/16\n100.64.0.0/16",
		at + "vpc-ipv6-cidr-blocks":       "2600:1f14:abc:de00::/56",
		at + "security-group-ids":         e.Groups[0],
		"iam/security-credentials/":       "node",
		strings.TrimSuffix(at, "/") + "/": "device-number",
	} {
		got, err := read(t, client(cloud, "node-a"), path)
		if strings.HasSuffix(path, "/") && strings.Contains(got, want+"\n") {
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", path, got, err, want)
		}
	}
	macs, err := read(t, client(cloud, "node-a"), "network/interfaces/macs/")
	want := []string{enis[0].MAC.String() + "/", enis[1].MAC.String() + "/"}
	if slices.Sort(want); err != nil || macs != strings.Join(want, "\n") {
		t.Errorf("macs = %q, %v; want %q", macs, err, want)
	}
	_, err = read(t, client(cloud, "node-a"), "network/interfaces/macs/"+enis[1].MAC.String()+"/ipv4-prefix")
	wantStatus(t, err, http.StatusNotFound)
	_, err = read(t, client(cloud, "node-a"), "no/such/path")
	wantStatus(t, err, http.StatusNotFound)

	doc, err := client(cloud, "node-b").GetInstanceIdentityDocument(patiently(t), &awsimds.GetInstanceIdentityDocumentInput{})
	if err != nil || doc.InstanceID != cloud.Instances.ID("node-b") || doc.Region != "lab-1" || doc.AvailabilityZone != "lab-1b" || doc.AccountID != snapshot.Account {
		t.Errorf("identity document = %+v, %v; want that of node-b", doc, err)
	}
	region, err := client(cloud, "node-a").GetRegion(patiently(t), &awsimds.GetRegionInput{})
	if err != nil || region.Region != "lab-1" {
		t.Errorf("region = %+v, %v; want lab-1", region, err)
	}
	info, err := client(cloud, "node-a").GetIAMInfo(patiently(t), &awsimds.GetIAMInfoInput{})
	if err != nil || !strings.HasSuffix(info.InstanceProfileArn, "/node") {
		t.Errorf("IAM info = %+v, %v; want the instance profile of role node", info, err)
	}
}

// get makes a plain request, like curl, and returns the status and the body.
func get(t *testing.T, method, url string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	ok(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	ok(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ok(t, err)
	return resp.StatusCode, string(b)
}

const (
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
	tokenHeader = "X-aws-ec2-metadata-token"
)

func TestTokens(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	v1 := false
	s.IMDS.V1 = &v1
	cloud := serve(t, s, vpc.WithClock(fake))
	url := cloud.IMDSURL("node-a")
	for _, tc := range []struct {
		method string
		header []string
		want   int
	}{
		{http.MethodPut, nil, http.StatusBadRequest},
		{http.MethodPut, []string{ttlHeader, "0"}, http.StatusBadRequest},
		{http.MethodPut, []string{ttlHeader, "21601"}, http.StatusBadRequest},
		{http.MethodPut, []string{ttlHeader, "60", "X-Forwarded-For", "10.0.0.1"}, http.StatusForbidden},
		{http.MethodGet, []string{ttlHeader, "60"}, http.StatusMethodNotAllowed},
		{http.MethodPut, []string{ttlHeader, "60"}, http.StatusOK},
	} {
		if got, _ := get(t, tc.method, url+"/latest/api/token", tc.header...); got != tc.want {
			t.Errorf("%s of the token with %v: status %d, want %d", tc.method, tc.header, got, tc.want)
		}
	}
	_, token := get(t, http.MethodPut, url+"/latest/api/token", ttlHeader, "60")
	want := func(status int, header ...string) {
		t.Helper()
		if got, _ := get(t, http.MethodGet, url+"/latest/meta-data/instance-id", header...); got != status {
			t.Fatalf("GET instance-id with %v: status %d, want %d", header, got, status)
		}
	}
	want(http.StatusUnauthorized)
	want(http.StatusUnauthorized, tokenHeader, "forged")
	want(http.StatusOK, tokenHeader, token)
	if got, _ := get(t, http.MethodGet, cloud.IMDSURL("node-b")+"/latest/meta-data/instance-id", tokenHeader, token); got != http.StatusUnauthorized {
		t.Fatalf("token on another instance: status %d, want %d", got, http.StatusUnauthorized)
	}
	fake.Advance(60 * time.Second)
	want(http.StatusUnauthorized, tokenHeader, token)

	cloud.IMDS.SetV1(true)
	want(http.StatusOK)
	want(http.StatusUnauthorized, tokenHeader, token)
}

// The SDK fetches a new token when the service has expired its current one.
func TestSDKRenewsToken(t *testing.T) {
	fake := clock.NewFake(time.Now())
	v1 := false
	s := instant()
	s.IMDS.V1 = &v1
	cloud := serve(t, s, vpc.WithClock(fake))
	c := awsimds.New(awsimds.Options{Endpoint: cloud.IMDSURL("node-a"), HTTPClient: &http.Client{}})
	for range 2 {
		if _, err := read(t, c, "instance-id"); err != nil {
			t.Fatal(err)
		}
		fake.Advance(7 * time.Hour)
	}
}

func TestLagAndOutage(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	s.IMDS.Delay = spec.Duration(3 * time.Second)
	cloud := serve(t, s, vpc.WithClock(fake))
	c := client(cloud, "node-a")
	e := cloud.Snapshot().InstanceENIs(cloud.Instances.ID("node-a"))[0]
	path := "network/interfaces/macs/" + e.MAC.String() + "/local-ipv4s"
	if _, err := cloud.ENIs.Assign(e.ID, vpc.AddressRequest{IPv4Count: 2}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 1, 1, 3} {
		got, err := read(t, c, path)
		if err != nil || len(strings.Fields(got)) != want {
			t.Fatalf("local-ipv4s = %q, %v; want %d addresses", got, err, want)
		}
		fake.Advance(time.Second)
	}
	// The metadata of a new instance is not subject to the delay.
	i, err := cloud.Instances.Launch(spec.Instance{Name: "late", Type: "t3.small", Subnet: "a", Role: "node"})
	ok(t, err)
	if got, err := read(t, client(cloud, "late"), "instance-id"); err != nil || got != i.ID {
		t.Fatalf("instance-id of a new instance = %q, %v; want %q", got, err, i.ID)
	}
	if got, err := read(t, client(cloud, "late"), "mac"); err != nil || got == "" {
		t.Fatalf("mac of a new instance = %q, %v; want a MAC address", got, err)
	}
	cloud.IMDS.Outage(true)
	if _, err := read(t, c, path); err == nil {
		t.Fatal("service replied during an outage")
	}
	cloud.IMDS.Outage(false)
	if _, err := read(t, c, path); err != nil {
		t.Fatal(err)
	}
}

// The EC2 API accepts credentials from the metadata service until they expire.
func TestRoleCredentials(t *testing.T) {
	fake := clock.NewFake(time.Now())
	s := instant()
	s.IMDS.CredentialTTL = spec.Duration(time.Hour)
	cloud := serve(t, s, vpc.WithClock(fake))
	provider := ec2rolecreds.New(func(o *ec2rolecreds.Options) {
		o.Client = awsimds.New(awsimds.Options{Endpoint: cloud.IMDSURL("node-a"), HTTPClient: &http.Client{}})
	})
	held, err := provider.Retrieve(patiently(t))
	if err != nil || held.SessionToken == "" || !held.Expires.After(time.Now()) {
		t.Fatalf("credentials = %+v, %v; want a session token and a future expiry", held, err)
	}
	call := func(creds aws.Credentials) error {
		c := awsec2.New(awsec2.Options{
			BaseEndpoint: &cloud.EC2URL, Region: "lab-1", RetryMaxAttempts: 1,
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return creds, nil }),
		})
		_, err := c.DescribeVpcs(t.Context(), &awsec2.DescribeVpcsInput{})
		return err
	}
	ok(t, call(held))
	fake.Advance(31 * time.Minute)
	next, err := provider.Retrieve(patiently(t))
	if err != nil || next.AccessKeyID == held.AccessKeyID {
		t.Fatalf("credentials were not renewed after half of their life: %v", err)
	}
	if err := call(held); err != nil {
		t.Fatalf("previous credentials are refused before they expire: %v", err)
	}
	fake.Advance(30 * time.Minute)
	if err := call(held); err == nil || !strings.Contains(err.Error(), "RequestExpired") {
		t.Fatalf("call with expired credentials: %v, want RequestExpired", err)
	}
	ok(t, call(next))
}

// The metadata lists a trunk among the ENIs of its instance, but not the branches.
func TestTrunkMetadata(t *testing.T) {
	s := instant()
	s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Type: "trunk"}}
	cloud := serve(t, s)
	enis := cloud.Snapshot().InstanceENIs(cloud.Instances.ID("node-a"))
	branch, err := cloud.ENIs.Create(vpc.CreateRequest{SubnetID: enis[0].SubnetID})
	ok(t, err)
	_, err = cloud.ENIs.Associate(vpc.AssociateRequest{TrunkID: enis[1].ID, BranchID: branch.ID, VLAN: 7})
	ok(t, err)
	c := client(cloud, "node-a")
	macs, err := read(t, c, "network/interfaces/macs/")
	ok(t, err)
	if want := enis[0].MAC.String() + "/\n" + enis[1].MAC.String() + "/"; macs != want {
		t.Errorf("macs = %q, want %q", macs, want)
	}
	if got, err := read(t, c, "network/interfaces/macs/"+enis[1].MAC.String()+"/device-number"); err != nil || got != "1" {
		t.Errorf("device-number of the trunk = %q, %v; want 1", got, err)
	}
	_, err = read(t, c, "network/interfaces/macs/"+branch.MAC.String()+"/interface-id")
	wantStatus(t, err, http.StatusNotFound)
}

// The metadata of an instance in an IPv6-only subnet has no IPv4 paths except those of the VPC, and its
// hostname contains its ID.
func TestIPv6OnlyMetadata(t *testing.T) {
	s := instant()
	s.VPCs[0].IPv6 = []netip.Prefix{netip.MustParsePrefix("2600:1f14:abc:de00::/56")}
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "six", Zone: "lab-1a", IPv6Native: true, IPv6: netip.MustParsePrefix("2600:1f14:abc:de66::/64")})
	s.Instances[0].Subnet = "six"
	cloud := serve(t, s)
	snapshot := cloud.Snapshot()
	i, _ := snapshot.Instance("node-a")
	e := snapshot.InstanceENIs(i.ID)[0]
	c, at := client(cloud, "node-a"), "network/interfaces/macs/"+e.MAC.String()+"/"
	for path, want := range map[string]string{
		"ipv6": e.IPv6[0].String(), "local-hostname": i.ID + ".lab-1.compute.internal", at + "local-hostname": i.ID + ".lab-1.compute.internal",
		at + "ipv6s": e.IPv6[0].String(), at + "subnet-ipv6-cidr-blocks": "2600:1f14:abc:de66::/64", at + "vpc-ipv4-cidr-blocks": "10.0.0.0/16",
	} {
		if got, err := read(t, c, path); err != nil || got != want {
			t.Errorf("%s = %q, %v; want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"local-ipv4", at + "local-ipv4s", at + "subnet-ipv4-cidr-block"} {
		_, err := read(t, c, path)
		wantStatus(t, err, http.StatusNotFound)
	}
}

// Unknown paths return 404, and a token header counts even if it is empty.
func TestStrictPaths(t *testing.T) {
	cloud := serve(t, instant())
	base := cloud.IMDSURL("node-a")
	for _, tc := range []struct {
		path   string
		header []string
		want   int
	}{
		{"/latest/meta-data/instance-id", nil, http.StatusOK},
		{"/latest/meta-data/instance-id/", nil, http.StatusNotFound},
		{"/latest/meta-data", nil, http.StatusOK},
		{"/latest/meta-data/", nil, http.StatusOK},
		{"/latest/meta-data/placement/", nil, http.StatusOK},
		{"/2021-03-23/meta-data/instance-id", nil, http.StatusOK},
		{"/2021-99-99/meta-data/instance-id", nil, http.StatusNotFound},
		{"/aaaaaaaaaa/meta-data/instance-id", nil, http.StatusNotFound},
		{"/2031-01-01/", nil, http.StatusNotFound},
		{"/latest/meta-data/instance-id", []string{tokenHeader, ""}, http.StatusUnauthorized},
		{"/latest/meta-data/instance-id", []string{tokenHeader, "made-up"}, http.StatusUnauthorized},
	} {
		got, body := get(t, http.MethodGet, base+tc.path, tc.header...)
		if got != tc.want {
			t.Errorf("%s with headers %q: status %d, want %d: %.60q", tc.path, tc.header, got, tc.want, body)
		}
	}
	for _, ttl := range []string{"", "0", "21601"} {
		if got, _ := get(t, http.MethodPut, base+"/latest/api/token", ttlHeader, ttl); got != http.StatusBadRequest {
			t.Errorf("token request for %q seconds: status %d, want %d", ttl, got, http.StatusBadRequest)
		}
	}
}
