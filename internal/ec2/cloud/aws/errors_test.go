package aws

import (
	"errors"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// TestErrorClasses sends every refusal through the SDK.
func TestErrorClasses(t *testing.T) {
	tests := []struct {
		status        int
		code, message string
		want          cloud.Class
	}{
		{503, "RequestLimitExceeded", "Request limit exceeded.", cloud.Throttled},
		{503, "Client.RequestLimitExceeded", "Request limit exceeded.", cloud.Throttled},
		{400, "Throttling", "Rate exceeded", cloud.Throttled},
		{400, "ThrottlingException", "Rate exceeded", cloud.Throttled},
		{400, "RequestThrottled", "", cloud.Throttled},
		{503, "SlowDown", "", cloud.Throttled},
		{400, "EC2ThrottledException", "", cloud.Throttled},
		{429, "SomethingNew", "", cloud.Throttled},

		{400, "InsufficientFreeAddressesInSubnet", "The specified subnet does not have enough free addresses to satisfy the request.", cloud.SubnetFull},
		{400, "InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.", cloud.SubnetFull},
		{400, "InvalidParameterValue", "There aren't sufficient free Ipv4 addresses or prefixes", cloud.SubnetFull},

		{400, "InvalidParameterValue", "There aren't sufficient free Ipv6 addresses or prefixes", cloud.SubnetFull},
		{400, "InvalidParameterValue", "Subnet does not contain any IPv6 CIDR block ranges", cloud.SubnetFull},

		{400, "PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.", cloud.LimitReached},
		{400, "AttachmentLimitExceeded", "Interface count 4 exceeds the limit for t3.small", cloud.LimitReached},
		{400, "AttachmentLimitExceeded", "Branch interface count 10 exceeds the limit for m5.large", cloud.LimitReached},
		{400, "NetworkInterfaceLimitExceeded", "", cloud.LimitReached},
		{400, "SecurityGroupsPerInterfaceLimitExceeded", "", cloud.LimitReached},
		{400, "SomethingNewLimitExceeded", "", cloud.LimitReached},

		{400, "InvalidNetworkInterfaceID.NotFound", "The networkInterface ID 'eni-1' does not exist", cloud.Gone},
		{400, "InvalidInstanceID.NotFound", "The instance ID 'i-1' does not exist", cloud.Gone},
		{400, "InvalidAttachmentID.NotFound", "", cloud.Gone},
		{400, "InvalidSubnetID.NotFound", "", cloud.Gone},
		{400, "InvalidGroup.NotFound", "", cloud.Gone},
		{400, "InvalidVpcID.NotFound", "", cloud.Gone},
		{400, "InvalidSecurityGroupID.NotFound", "", cloud.Gone},
		{400, "InvalidAssociationID.NotFound", "", cloud.Gone},
		{400, "InvalidParameterValue", "Some of the specified addresses are not assigned to interface eni-1", cloud.Gone},

		{400, "InvalidNetworkInterface.InUse", "Interface: [eni-1] in use.", cloud.Conflict},
		{400, "InvalidParameterValue", "Network interface 'eni-1' is currently in use.", cloud.Conflict},
		{400, "InvalidParameterValue", "Instance 'i-1' already has an interface attached at device index '1'.", cloud.Conflict},
		{400, "IncorrectState", "", cloud.Conflict},
		{400, "IncorrectInstanceState", "", cloud.Conflict},
		{400, "InvalidIPAddress.InUse", "", cloud.Conflict},
		{400, "Resource.AlreadyAssigned", "", cloud.Conflict},
		{400, "DependencyViolation", "", cloud.Conflict},
		{400, "InvalidVlanId.Duplicate", "VlanId '7' is in use", cloud.Conflict},

		{403, "UnauthorizedOperation", "You are not authorized to perform this operation.", cloud.Permission},
		{401, "AuthFailure", "AWS was not able to validate the provided access credentials", cloud.Permission},
		{403, "SignatureDoesNotMatch", "", cloud.Permission},
		{400, "MissingAuthenticationToken", "", cloud.Permission},
		{400, "OptInRequired", "", cloud.Permission},
		{400, "PendingVerification", "", cloud.Permission},
		{400, "Blocked", "", cloud.Permission},
		{400, "ExpiredToken", "", cloud.Permission},
		{400, "RequestExpired", "", cloud.Permission},
		{403, "InvalidClientTokenId", "", cloud.Permission},

		{500, "InternalError", "An internal error has occurred", cloud.Transient},
		{500, "InternalFailure", "", cloud.Transient},
		{503, "Unavailable", "", cloud.Transient},
		{503, "ServiceUnavailable", "", cloud.Transient},
		{503, "Server.Unavailable", "", cloud.Transient},
		{500, "SomethingNew", "", cloud.Transient},

		{400, "IdempotentParameterMismatch", "", cloud.Bug},
		{400, "InvalidParameterValue", "Value (x) for parameter y is invalid.", cloud.Bug},
		{400, "InvalidParameterCombination", "", cloud.Bug},
		{400, "MissingParameter", "", cloud.Bug},
		{400, "UnsupportedOperation", "", cloud.Bug},
		{400, "OperationNotPermitted", "The network interface at device index 0 and networkCard index 0 cannot be detached.", cloud.Bug},
		{400, "InvalidNetworkInterfaceId.Malformed", "", cloud.Bug},
		{400, "SomethingNew", "", cloud.Bug},
	}
	for _, tt := range tests {
		t.Run(tt.code, func(t *testing.T) {
			s := serve(t, map[string][]answer{"AttachNetworkInterface": {refusal(tt.status, tt.code, tt.message)}})
			_, err := client(t, s).AttachENI(t.Context(), "eni-1", "i-1", 1)
			e, ok := errors.AsType[*cloud.Error](err)
			if !ok {
				t.Fatalf("error %v is no *cloud.Error", err)
			}
			if e.Class != tt.want || e.Op != "AttachNetworkInterface" || e.Code != tt.code {
				t.Errorf("got class %v, op %s, code %s; want class %v (%v)", e.Class, e.Op, e.Code, tt.want, err)
			}
			if tt.message != "" && e.Message != tt.message {
				t.Errorf("message %q, want %q", e.Message, tt.message)
			}
		})
	}
}

// TestForeignReplies: error pages of proxies and load balancers are not errors of EC2.
func TestForeignReplies(t *testing.T) {
	tests := []struct {
		name string
		a    answer
		want cloud.Class
	}{
		{"empty success", answer{status: 200}, cloud.Transient},
		{"only white space", answer{status: 200, body: " \n"}, cloud.Transient},
		{"log-in page", answer{status: 200, body: "<html><body>Log in</body></html>"}, cloud.Transient},
		{"another action's answer", ok("DescribeVpcs", ""), cloud.Transient},
		{"cut short", answer{status: 200, body: ok("DescribeNetworkInterfaces", "").body[:150]}, cloud.Transient},
		{"not XML", answer{status: 200, body: `{"ok":true}`}, cloud.Transient},
		{"bad gateway page", answer{status: 502, body: "<html>Bad Gateway</html>"}, cloud.Transient},
		{"bad gateway, empty", answer{status: 502}, cloud.Transient},
		{"forbidden page", answer{status: 403, body: "<html>no</html>"}, cloud.Bug},
		{"moved", answer{status: 301}, cloud.Transient},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{"DescribeNetworkInterfaces": {tt.a}})
			list, err := client(t, s).ENIs(t.Context(), cloud.ENIFilter{})
			if err == nil {
				t.Fatalf("taken for a listing of %d interfaces", len(list))
			}
			if got := cloud.ClassOf(err); got != tt.want {
				t.Errorf("class %v, want %v: %v", got, tt.want, err)
			}
		})
	}
}
