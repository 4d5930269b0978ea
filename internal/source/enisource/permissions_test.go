package enisource

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// The actions of AmazonEKS_CNI_Policy (AWS Managed Policy Reference), on every resource: version 5 of 2024, and what
// version 6 of 2026 has besides. Both also allow ec2:CreateTags on network interfaces.
var (
	managedActions = []string{
		"ec2:AssignPrivateIpAddresses", "ec2:AttachNetworkInterface", "ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface",
		"ec2:DescribeInstances", "ec2:DescribeTags", "ec2:DescribeNetworkInterfaces", "ec2:DescribeInstanceTypes", "ec2:DescribeSubnets",
		"ec2:DetachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute", "ec2:UnassignPrivateIpAddresses",
	}
	managedSince6 = []string{"ec2:DescribeSecurityGroups"}
)

// managedPolicy returns AmazonEKS_CNI_Policy with more or fewer actions than version 5.
func managedPolicy(t *testing.T, more []string, fewer ...string) string {
	t.Helper()
	actions := slices.DeleteFunc(slices.Concat(managedActions, more), func(a string) bool { return slices.Contains(fewer, a) })
	type statement struct {
		Effect           string
		Action, Resource []string
	}
	b, err := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []statement{
		{"Allow", actions, []string{"*"}}, {"Allow", []string{"ec2:CreateTags"}, []string{"arn:aws:ec2:*:*:network-interface/*"}},
	}})
	check.OK(t, err)
	return string(b)
}

// managedSpec is a lab of untagged instances whose role has a policy. It has a second subnet in the zone of node-a,
// and a security group, by tags.
func managedSpec(policy string) spec.Spec {
	s := labSpec()
	s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey()}
	s.AccessKeys[0].Actions, s.AccessKeys[0].Policy = nil, policy
	v := &s.VPCs[0]
	v.IPv6 = []netip.Prefix{netip.MustParsePrefix("2001:db8::/56")}
	pods := map[string]string{"for": "pods"}
	v.Subnets = append(v.Subnets, spec.Subnet{Name: "pods", Zone: v.Subnets[0].Zone, CIDR: netip.MustParsePrefix("10.0.200.0/22"), Tags: pods})
	v.Subnets[0].Tags, v.Subnets[0].IPv6 = pods, netip.MustParsePrefix("2001:db8:0:1::/64")
	v.SecurityGroups = append(v.SecurityGroups, spec.SecurityGroup{Name: "pods", Tags: pods})
	return s
}

// actions returns the condition of the node's permissions.
func (n *labNode) actions() source.Condition {
	all := n.Snapshot().Conditions
	return all[slices.IndexFunc(all, func(c source.Condition) bool { return c.Type == conditionActions })]
}

// denials counts the calls that were refused, by action.
func (n *labNode) denials() map[string]int {
	out := map[string]int{}
	for action, calls := range n.lab.Cloud.API.Stats() {
		if refused := calls.Errors["UnauthorizedOperation"]; refused > 0 {
			out[action] = refused
		}
	}
	return out
}

// A node with AWS's own AmazonEKS_CNI_Policy, whose instance has no tags, does all that the default settings ask for.
func TestAmazonManagedPolicySuffices(t *testing.T) {
	for name, p := range map[string]ipam.Policy{
		"addresses": {WarmIP: 2}, "whole ENIs": ipam.DefaultAWS(), "prefixes": {PrefixDelegation: true, WarmPrefix: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := startLab(t, managedSpec(managedPolicy(t, nil)), p, func(s *labSetup) { s.FollowGroups = true })
			n.owned(t, n.pods(t, 0, 20))
			n.until(t, "it has grown", n.agree)
			grown := len(n.Snapshot().Addresses)
			n.release(20)
			n.until(t, "it shrinks", func() bool { return len(n.Snapshot().Addresses) < grown && n.agree() })
			n.until(t, "surplus ENIs are deleted", func() bool { return len(n.Snapshot().Groups) == 1 && n.agree() })
			check.Equal(t, len(n.denials()), 0, "refused actions: %v", n.denials())
			check.Equal(t, n.actions(), source.Condition{Type: conditionActions, Healthy: true, Reason: "Allowed"}, "condition")
		})
	}
}

// What other settings need besides, and any single action that a role lacks, is named with what does not work. The
// node serves the pods that it can, and neither calls nor log lines pile up.
func TestMissingPermissionsAreReported(t *testing.T) {
	byTags := map[string]string{"for": "pods"}
	for _, tt := range []struct {
		action string // refused
		policy ipam.Policy
		tune   func(*labSetup)
		serves int // pods that get an address
		says   string
	}{
		{"DescribeRouteTables", ipam.Policy{WarmIP: 2}, func(s *labSetup) { s.SubnetTags = byTags }, 12, "routes differ"},
		{"DescribeSecurityGroups", ipam.Policy{WarmIP: 2}, func(s *labSetup) { s.GroupTags = byTags }, 9, "no ENI is created"},
		{"AssignIpv6Addresses", ipam.Policy{Families: ipfamily.OnlyIPv6, WarmPrefix: 1, PrefixDelegation: true}, nil, 0, "get no more"},
		{"AssignPrivateIpAddresses", ipam.Policy{WarmIP: 2}, nil, 0, "get no more"},
		{"CreateNetworkInterface", ipam.Policy{WarmIP: 2}, nil, 9, "only the addresses of its present ENIs"},
		{"AttachNetworkInterface", ipam.Policy{WarmIP: 2}, nil, 9, "only the addresses of its present ENIs"},
		{"ModifyNetworkInterfaceAttribute", ipam.Policy{WarmIP: 2}, nil, 12, "not deleted with their instance"},
		{"DescribeSubnets", ipam.Policy{WarmIP: 2}, nil, 0, "not known"},
		{"DescribeInstanceTypes", ipam.Policy{WarmIP: 2}, nil, 12, "own table"},
		{"DescribeNetworkInterfaces", ipam.Policy{WarmIP: 2}, nil, 0, "not known"},
		{"DescribeInstances", ipam.Policy{WarmIP: 2}, nil, 0, "not known"},
	} {
		t.Run(tt.action, func(t *testing.T) {
			if tt.tune == nil {
				tt.tune = func(*labSetup) {}
			}
			n := startLab(t, managedSpec(managedPolicy(t, managedSince6, "ec2:"+tt.action)), tt.policy, tt.tune)
			if tt.serves > 0 {
				n.pods(t, 0, tt.serves)
			}
			if tt.serves < 12 {
				_, err := sourcetest.Try(t, n, sourcetest.Request(99), time.Second)
				check.ErrorSays(t, err, "no address is free")
			}
			n.until(t, "the refusal is reported", func() bool { return !n.actions().Healthy })
			c := n.actions()
			check.Equal(t, c.Reason, "Refused", "reason")
			for _, part := range []string{"ec2:" + tt.action, tt.says, "IAM role"} {
				if !strings.Contains(c.Message, part) {
					t.Errorf("message %q, want one with %q", c.Message, part)
				}
			}
			check.Equal(t, len(n.denials()), 1, "refused actions: %v", n.denials())
			check.AtMost(t, n.denials()[tt.action], 12, "refused calls") // the test retries each second; a node each minute
			n.stop()
			check.Equal(t, strings.Count(n.logs.String(), "EC2 refuses an action"), 1, "lines of the log")
		})
	}
}

// Refusals are told once an hour at most, end with a call that is allowed, and are forgotten when the node needs the
// action no more.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		p := NewPermissions(NewMetrics(prometheus.NewRegistry()), clock.Real{}, slog.New(slog.NewTextHandler(&log, nil)))
		wants := func(healthy bool, lines int) {
			t.Helper()
			check.Equal(t, p.condition().Healthy, healthy, "condition %+v", p.condition())
			check.Equal(t, strings.Count(log.String(), "\n"), lines, "lines of %s", log.String())
		}
		call := func(code string) { p.Call(pace.DescribeRouteTables.Action, code, 0) }
		call(pace.CodeOK)
		call("RequestLimitExceeded")
		wants(true, 0)
		call("UnauthorizedOperation")
		call("UnauthorizedOperation")
		call(pace.CodeNoReply)
		wants(false, 1)
		for range 5 { // allowed for one resource and refused for another
			call(pace.CodeOK)
			call("UnauthorizedOperation")
		}
		wants(false, 2)
		call(pace.CodeOK)
		wants(true, 2)
		time.Sleep(refusalLasts) //nolint:forbidigo // virtual time
		call("UnauthorizedOperation")
		wants(false, 3)
		time.Sleep(refusalLasts) //nolint:forbidigo // virtual time
		wants(true, 3)
	})
}

// Every action that Berth calls in node mode has a description of what does not work without it.
func TestEveryActionHasADescription(t *testing.T) {
	for _, action := range pace.Actions() {
		branch := action == pace.AssociateBranch.Action || action == pace.DisassociateBranch.Action // the operator's
		check.Equal(t, without[action] == "", branch, "%s lacks a description", action)
	}
}
