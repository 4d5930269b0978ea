package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
)

// start runs "vpclab serve" and returns the settings it prints, a function that
// ends it as a signal would, and the lines that come after the settings.
func start(t *testing.T, args ...string) (env map[string]string, stop func() error, lines *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	root := newRoot()
	root.SetOut(w)
	root.SetArgs(append([]string{"serve", "--ec2-addr", "127.0.0.1:0", "--imds-addr", "127.0.0.1:0"}, args...))
	ended := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		_ = w.Close()
		ended <- err
	}()
	env = map[string]string{}
	for lines = bufio.NewScanner(r); lines.Scan(); {
		if kv, ok := strings.CutPrefix(lines.Text(), "export "); ok {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		if strings.HasPrefix(lines.Text(), "Try:") {
			break
		}
	}
	return env, func() error { cancel(); return <-ended }, lines
}

// sdk is a client of the official SDK for what start has printed, that does not retry.
func sdk(env map[string]string, creds aws.CredentialsProvider) *ec2.Client {
	return ec2.New(ec2.Options{
		BaseEndpoint: aws.String(env["AWS_ENDPOINT_URL_EC2"]), Region: env["AWS_REGION"], Credentials: creds, RetryMaxAttempts: 1,
	})
}

func admin(env map[string]string) *ec2.Client {
	return sdk(env, credentials.NewStaticCredentialsProvider(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], ""))
}

// What is printed is all that the official SDK needs, with a spec as without.
func TestServeForTheSDK(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(file, []byte(`
region: eu-lab-7
vpcs:
- name: mine
  cidrs: [10.7.0.0/16]
  subnets: [{name: only, zone: eu-lab-7a, cidr: 10.7.0.0/24, tags: {tier: pods}}]
instances: [{name: first, type: t3.small, subnet: only}, {name: worker, type: t3.small, subnet: only, role: node}]
roles: [{name: node, actions: ["ec2:DescribeSubnets"]}]
rateLimits: {CreateNetworkInterface: {bucket: 1, refill: 0.0001}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	env, stop, _ := start(t, "--spec", file, "--imds-instance", "worker")
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	if r, err := http.Get(env["AWS_ENDPOINT_URL_EC2"]); err != nil || r.StatusCode != http.StatusForbidden || r.Body.Close() != nil {
		t.Errorf("an unsigned call to the EC2 API: %+v, %v", r, err)
	}
	admin := admin(env)
	subnets, err := admin.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{
		Filters: []types.Filter{{Name: aws.String("tag:tier"), Values: []string{"pods"}}},
	})
	if err != nil || len(subnets.Subnets) != 1 || *subnets.Subnets[0].CidrBlock != "10.7.0.0/24" {
		t.Fatalf("%+v, %v", subnets, err)
	}
	create := &ec2.CreateNetworkInterfaceInput{SubnetId: subnets.Subnets[0].SubnetId, SecondaryPrivateIpAddressCount: aws.Int32(2)}
	made, err := admin.CreateNetworkInterface(t.Context(), create)
	if err != nil || len(made.NetworkInterface.PrivateIpAddresses) != 3 {
		t.Fatalf("%+v, %v", made, err)
	}
	wantCode(t, outcome(admin.CreateNetworkInterface(t.Context(), create)), "RequestLimitExceeded")

	metadata := imds.New(imds.Options{Endpoint: env["AWS_EC2_METADATA_SERVICE_ENDPOINT"], HTTPClient: &http.Client{}}) // without the SDK's limit of half a second
	region, err := metadata.GetRegion(t.Context(), &imds.GetRegionInput{})
	if err != nil || region.Region != env["AWS_REGION"] || region.Region != env["AWS_DEFAULT_REGION"] || region.Region != "eu-lab-7" {
		t.Errorf("region %+v, %v", region, err)
	}
	node := sdk(env, ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = metadata }))
	if _, err := node.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{}); err != nil {
		t.Errorf("with the role of the instance: %v", err)
	}
	wantCode(t, outcome(node.DescribeVpcs(t.Context(), &ec2.DescribeVpcsInput{})), "UnauthorizedOperation")
}

func outcome[O any](_ *O, err error) error { return err }

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

func TestServeMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(file, []byte("vpcs: [{name: lab, cidr: 10.0.0.0/16}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--spec", file}, "vpcs[0].cidr: unknown field"},
		{[]string{"--spec", "/no/such/file"}, "no such file"},
		{[]string{"--imds-instance", "node-z"}, `no instance "node-z"`},
		{[]string{"--ec2-addr", "nowhere"}, "serve the EC2 API"},
	} {
		_, stop, _ := start(t, tc.args...)
		if err := stop(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
		}
	}
}
