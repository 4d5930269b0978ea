package main

import (
	"bufio"
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

func TestCallLine(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.Local)
	for _, tc := range []struct {
		call vpc.CallRecord
		want string
	}{
		{
			vpc.CallRecord{Time: at, Action: "DescribeVpcs"},
			"03:04:05.006  DescribeVpcs                     ok           -",
		},
		{
			vpc.CallRecord{
				Time: at, Action: "CreateNetworkInterface", Principal: "arn:aws:sts::123456789012:assumed-role/node/i-1", Code: "LostReply", Omitted: 2,
				Params: map[string][]string{"Action": {"x"}, "SubnetId": {"subnet-1"}, "Description": {"two words"}, "B": {"\x1b[2J"}, "E": {""}},
			},
			`03:04:05.006  CreateNetworkInterface           LostReply    assumed-role/node/i-1 B="\x1b[2J" Description="two words" E="" SubnetId=subnet-1 (2 more parameters)`,
		},
	} {
		if got := callLine(tc.call); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// serve --calls shows each call as it comes.
func TestServeShowsCalls(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	root := newRoot()
	root.SetOut(w)
	root.SetArgs([]string{"serve", "--calls", "--ec2-addr", "127.0.0.1:0", "--imds-addr", "127.0.0.1:0"})
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	env := map[string]string{}
	lines := bufio.NewScanner(r)
	next := func(prefix string) string {
		for lines.Scan() {
			if kv, ok := strings.CutPrefix(lines.Text(), "export "); ok {
				k, v, _ := strings.Cut(kv, "=")
				env[k] = v
			}
			if strings.Contains(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("no line with %q", prefix)
		return ""
	}
	next("Try:")
	c := ec2.New(ec2.Options{
		BaseEndpoint: aws.String(env["AWS_ENDPOINT_URL_EC2"]), Region: env["AWS_REGION"], RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], ""),
	})
	wantCode(t, outcome(c.CreateNetworkInterface(t.Context(), &ec2.CreateNetworkInterfaceInput{SubnetId: aws.String("subnet-00000000")})), "InvalidSubnetID.NotFound")
	if line := next("CreateNetworkInterface"); !strings.Contains(line, "InvalidSubnetID.NotFound") || !strings.Contains(line, " SubnetId=subnet-00000000") || !strings.Contains(line, "user/") {
		t.Errorf("shows %q", line)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// status shows an ENI's network card and all its kinds of addresses.
func TestStatusOfAnENI(t *testing.T) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 1, ' ', 0)
	e := lab.ENIStatus{
		ID: "eni-1", NetworkCard: 1, DeviceIndex: 2, Status: "attached", Subnet: "a", Primary: netip.MustParseAddr("10.0.0.9"),
		Secondary: make([]netip.Addr, 3), Prefixes: make([]netip.Prefix, 2), IPv6: make([]netip.Addr, 1), IPv6Prefixes: make([]netip.Prefix, 4),
	}
	eniRow(w, e, "node-1")
	_ = w.Flush()
	if got, want := out.String(), "eni-1 node-1 1 2 attached a 10.0.0.9 3 + 2 × /28 + 1 IPv6 + 4 × /80 -\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
