package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness"
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
	env, stop, lines := start(t, "--calls")
	c := admin(env)
	wantCode(t, outcome(c.CreateNetworkInterface(t.Context(), &ec2.CreateNetworkInterfaceInput{SubnetId: aws.String("subnet-00000000")})), "InvalidSubnetID.NotFound")
	var line string
	for lines.Scan() {
		if line = lines.Text(); strings.Contains(line, "CreateNetworkInterface") {
			break
		}
	}
	if !strings.Contains(line, "InvalidSubnetID.NotFound") || !strings.Contains(line, " SubnetId=subnet-00000000") || !strings.Contains(line, "user/") {
		t.Errorf("shows %q", line)
	}
	if err := stop(); err != nil {
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
	out.Reset()
	eniRow(w, lab.ENIStatus{ID: "eni-2", VLAN: 7, DeviceIndex: -1, Status: "in-use", Subnet: "a", Primary: netip.MustParseAddr("10.0.0.10")}, "node-1")
	_ = w.Flush()
	if got, want := out.String(), "eni-2 node-1 - vlan 7 in-use a 10.0.0.10 0 -\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The process in the background gets the flags of up.
func TestFlagsOfUpAreHandedOn(t *testing.T) {
	up, process := newUp(), newLabProcess()
	harness.OK(t, up.ParseFlags([]string{
		"--nodes=3", "--env=A=1", "--env=B=x y", "--berthd-arg=--a=b,c", "--berthd-arg=d", "--images=/i", "--timeout=9m", "--egress",
	}))
	harness.OK(t, process.ParseFlags(flagArgs(up, "timeout")))
	env, err := process.Flags().GetStringToString("env")
	harness.OK(t, err)
	daemon, err := process.Flags().GetStringArray("berthd-arg")
	harness.OK(t, err)
	got := fmt.Sprint(process.Flag("nodes").Value, env, daemon, process.Flag("images").Value, process.Flag("egress").Value)
	if want := "3 map[A:1 B:x y] [--a=b,c d] [/i] true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
