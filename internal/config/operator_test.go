package config

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

func TestOperatorDefaults(t *testing.T) {
	o, err := loadOperator(t, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	want := Operator{
		OperatorCluster: OperatorCluster{ClusterName: "default", IPAM: []string{IPAMENIOperator}},
		LeaderSettings: LeaderSettings{
			LeaderElect: true, LeaseNamespace: "kube-system", PodName: host, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		},
		CloudSettings: CloudSettings{IMDSMode: imdsModeIPv4},
		EC2Limits:     map[string]pace.Limit{},
		OperatorNodes: OperatorNodes{NodeGoneGrace: time.Minute, ENITimes: ENITimes{
			ShrinkDelay: time.Minute, ListingInterval: time.Minute, SettleTime: time.Minute, OrphanAge: 15 * time.Minute, OrphanInterval: 10 * time.Minute,
		}},
		OperatorPools:    OperatorPools{BlockClaimGrace: 2 * time.Minute, NodeMaxPods: 1024},
		OperatorPorts:    OperatorPorts{VPCCalls: 8, UnplugGrace: time.Minute, BranchCooling: time.Minute, FirstIsPort: true},
		OperatorEgress:   OperatorEgress{EgressPort: 5555},
		OperatorPolicies: OperatorPolicies{NetworkPolicyDaemons: "system:serviceaccount:kube-system:berthd"},
		OperatorWatching: OperatorWatching{MetricsAddr: "127.0.0.1:61680"},
		LogSettings:      LogSettings{LogLevel: "info", LogFormat: "text"},
	}
	if len(o.Effective) != len(operatorTable(&Operator{})) {
		t.Errorf("%d settings are listed, want all", len(o.Effective))
	}
	o.Effective = nil
	if diff := cmp.Diff(want, o); diff != "" {
		t.Error(diff)
	}
}

func TestOperatorInAPod(t *testing.T) {
	o, err := loadOperator(t, nil, []string{"POD_NAME=berth-operator-x", "POD_NAMESPACE=network", "BERTH_LEASE_DURATON=30s"})
	if err != nil || o.PodName != "berth-operator-x" || o.LeaseNamespace != "network" || !cmp.Equal(o.Unknown, []string{"BERTH_LEASE_DURATON"}) {
		t.Errorf("config = %+v, %v", o, err)
	}
}

func TestInstanceTags(t *testing.T) {
	o, err := loadOperator(t, []string{"--instance-node-tag=Name", "--instance-cluster-tag=kubernetes.io/cluster/one"}, nil)
	if err != nil || o.InstanceNodeTag != "Name" || o.InstanceClusterTag != (Tag{Key: "kubernetes.io/cluster/one"}) {
		t.Errorf("config = %+v, %v", o, err)
	}
	o, err = loadOperator(t, []string{"--instance-cluster-tag=cluster=a=b"}, nil)
	if err != nil || o.InstanceClusterTag != (Tag{Key: "cluster", Value: "a=b"}) {
		t.Errorf("config = %+v, %v", o, err)
	}
	for _, args := range []string{
		"--instance-node-tag=a=b", "--instance-node-tag= a", "--instance-cluster-tag==b", "--instance-cluster-tag=a=",
		"--instance-cluster-tag=" + strings.Repeat("a", 129), "--instance-cluster-tag=a=" + strings.Repeat("a", 257),
	} {
		_, err := loadOperator(t, []string{args}, nil)
		says(t, err, "of an EC2 tag")
	}
}

func TestEC2Limits(t *testing.T) {
	o, err := loadOperator(t, []string{"--ec2-limits=AssignPrivateIpAddresses=5/50, CreateNetworkInterface=0.5/1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]pace.Limit{"AssignPrivateIpAddresses": {Rate: 5, Burst: 50}, "CreateNetworkInterface": {Rate: .5, Burst: 1}}
	if diff := cmp.Diff(want, o.EC2Limits); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]string{
		"AssignPrivateIPAddresses=5/50":  "expected AssignIpv6Addresses, AssignPrivateIpAddresses, ",
		"AssignPrivateIpAddresses":       "expected key=value",
		"AssignPrivateIpAddresses=5":     "a slash and a burst",
		"AssignPrivateIpAddresses=0/5":   "from 0.01",
		"AssignPrivateIpAddresses=NaN/5": "from 0.01",
		"AssignPrivateIpAddresses=5/0":   "from 1 to 100000",
		"AssignPrivateIpAddresses=5/5/5": "such as 5/50",
	} {
		_, err := loadOperator(t, []string{"--ec2-limits=" + text}, nil)
		says(t, err, want)
	}
}

func TestAllInvalidOperatorSettingsAreNamed(t *testing.T) {
	_, err := loadOperator(t,
		[]string{"--cluster-name=MY_CLUSTER", "--retry-period=10s", "--pprof-address=:6060", "--node-gone-grace=-1s"},
		[]string{"BERTH_LEASE_DURATION=10s", "BERTH_LEADER_ELECT=perhaps", "BERTH_METRICS_ADDRESS=:1", "BERTH_HEALTH_ADDRESS=:1"})
	says(t, err,
		`--cluster-name: "MY_CLUSTER": expected the name of this cluster`,
		`--lease-duration 10s must be longer than --renew-deadline 10s`,
		`--renew-deadline 10s must be longer than 1.2 times --retry-period 10s`,
		`--pprof-address: ":6060": host "" is not a loopback address`,
		`--node-gone-grace: "-1s": expected a duration`,
		`environment variable BERTH_LEADER_ELECT: "perhaps": expected true or false`,
		`--metrics-address and --health-address are both :1`)
}

func TestLeaseDurationIsInSeconds(t *testing.T) {
	_, err := loadOperator(t, []string{"--lease-duration=12500ms"}, nil)
	says(t, err, "whole number of seconds")
}

// Egress needs an image, but no source of addresses.
func TestEgressAlone(t *testing.T) {
	for text, want := range map[string]string{
		"--ipam= --egress --egress-image=berth-egress:v1":     "",
		"--ipam=pool --egress --egress-image=berth-egress:v1": "",
		"--ipam=":          "--ipam is empty",
		"--ipam= --egress": "--egress needs --egress-image",
		"--egress --egress-image=berth-egress:v1 --egress-port=0": "--egress-port must be at least 1",
	} {
		o, err := loadOperator(t, strings.Fields(text), nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want %q", text, err, want)
		}
		if err == nil && (!o.Egress || o.EgressImage != "berth-egress:v1" || o.EgressPort != 5555) {
			t.Errorf("%s: config = %+v, want egress with its defaults", text, o)
		}
	}
}
