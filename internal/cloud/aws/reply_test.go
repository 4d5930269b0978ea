package aws

import (
	"context"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// A reply that is not what was asked for is as good as lost, and says why.
func TestRepliesAreComparedWithTheirRequests(t *testing.T) {
	address := func(s string) string { return "<item><privateIpAddress>" + s + "</privateIpAddress></item>" }
	set := func(items ...string) string {
		return "<assignedPrivateIpAddressesSet>" + strings.Join(items, "") + "</assignedPrivateIpAddressesSet>"
	}
	const prefix = "<assignedIpv4PrefixSet><item><ipv4Prefix>10.0.0.16/28</ipv4Prefix></item></assignedIpv4PrefixSet>"
	two := func(ctx context.Context, c cloud.API) error {
		_, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{Addresses: 2})
		return err
	}
	prefixes := func(ctx context.Context, c cloud.API) error {
		_, err := c.AssignAddresses(ctx, "eni-1", cloud.Amount{Prefixes: 1})
		return err
	}
	list := func(f cloud.ENIFilter) func(context.Context, cloud.API) error {
		return func(ctx context.Context, c cloud.API) error { _, err := c.ENIs(ctx, f); return err }
	}
	const eni = "<networkInterfaceSet><item><networkInterfaceId>eni-2</networkInterfaceId><attachment><attachmentId>a</attachmentId>" +
		"<instanceId>i-2</instanceId><deviceIndex>0</deviceIndex></attachment></item></networkInterfaceSet>"
	for _, tt := range []struct {
		name, action, answer string
		call                 func(context.Context, cloud.API) error
		says                 string // empty: it fits
	}{
		{"as asked", pace.Assign.Action, "<networkInterfaceId>eni-1</networkInterfaceId>" + set(address("10.0.0.5"), address("10.0.0.6")), two, ""},
		{"too many", pace.Assign.Action, set(address("10.0.0.5"), address("10.0.0.6"), address("10.0.0.7")), two, "3 addresses"},
		{"too few", pace.Assign.Action, set(address("10.0.0.5")), two, "1 addresses"},
		{"one twice", pace.Assign.Action, set(address("10.0.0.5"), address("10.0.0.5")), two, "each once"},
		{"another ENI", pace.Assign.Action, "<networkInterfaceId>eni-9</networkInterfaceId>" + set(address("10.0.0.5"), address("10.0.0.6")), two, "eni-9"},
		{"prefixes too", pace.Assign.Action, set(address("10.0.0.5"), address("10.0.0.6")) + prefix, two, "1 prefixes"},
		{"a prefix", pace.Assign.Action, prefix, prefixes, ""},
		{"addresses for a prefix", pace.Assign.Action, set(address("10.0.0.5")), prefixes, "1 addresses and 0 prefixes"},
		{"another ENI listed", describeENIs, eni, list(cloud.ENIFilter{IDs: []string{"eni-1"}}), "eni-2"},
		{"another instance's ENI listed", describeENIs, eni, list(cloud.ENIFilter{InstanceIDs: []string{"i-1", "i-3"}}), "i-2"},
		{"an ENI without the tag listed", describeENIs, eni, list(cloud.ENIFilter{Tags: map[string]string{"a": "b"}}), "tagSet[a]"},
		{"the ENI asked for", describeENIs, eni, list(cloud.ENIFilter{IDs: []string{"eni-2"}, InstanceID: "i-2"}), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{tt.action: {ok(tt.action, tt.answer)}})
			err := tt.call(t.Context(), client(t, s))
			switch {
			case tt.says == "" && err != nil:
				t.Error(err)
			case tt.says != "" && (cloud.ClassOf(err) != cloud.Transient || !strings.Contains(err.Error(), tt.says)):
				t.Errorf("got %v of class %v, want a transient one that says %q", err, cloud.ClassOf(err), tt.says)
			}
		})
	}
}
