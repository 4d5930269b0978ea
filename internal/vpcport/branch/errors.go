package branch

import (
	"errors"
	"fmt"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/vpcport"
)

// The operations named in errors.
const (
	opENIs    = "EC2 DescribeNetworkInterfaces"
	opSubnets = "EC2 DescribeSubnets"
	opCreate  = "EC2 CreateNetworkInterface"
	opUpdate  = "EC2 ports"
	opBind    = "EC2 AssociateTrunkInterface"
	opUnbind  = "EC2 DisassociateTrunkInterface"
	opDelete  = "EC2 DeleteNetworkInterface"
)

// byCode maps EC2's error codes that need a finer class than their cloud.Class (EC2 API, "Error codes").
var byCode = map[string]vpcport.Class{
	"InvalidSubnetID.NotFound":                vpcport.ReferenceGone,
	"InvalidSubnetID.Malformed":               vpcport.ReferenceGone,
	"InvalidGroup.NotFound":                   vpcport.ReferenceGone,
	"InvalidGroupId.Malformed":                vpcport.ReferenceGone,
	"InvalidGroupId.NotFound":                 vpcport.ReferenceGone,
	"InvalidNetworkInterfaceID.NotFound":      vpcport.PortGone,
	"InvalidNetworkInterfaceId.Malformed":     vpcport.PortGone,
	"InvalidNetworkInterfaceID.Malformed":     vpcport.PortGone,
	"InvalidIPAddress.InUse":                  vpcport.AddressTaken,
	"InvalidParameterValue":                   vpcport.Invalid,
	"SecurityGroupsPerInterfaceLimitExceeded": vpcport.Invalid,
	"InvalidParameterCombination":             vpcport.Invalid,
	"InvalidPrivateIpAddress.Malformed":       vpcport.Invalid,
	"InvalidSecurityGroupID.NotFound":         vpcport.ReferenceGone,
}

// codeNoENI is the code for a repeated request whose ENI has been deleted since.
const codeNoENI = "InvalidNetworkInterfaceID.NotFound"

// codeDuplicate is the code for a VLAN that another branch of the trunk has.
const codeDuplicate = "InvalidVlanId.Duplicate"

// byClass maps the classes of all other errors.
var byClass = map[cloud.Class]vpcport.Class{
	cloud.Throttled: vpcport.Throttled, cloud.SubnetFull: vpcport.SubnetFull, cloud.LimitReached: vpcport.OverQuota,
	cloud.Gone: vpcport.Conflict, cloud.Conflict: vpcport.Conflict, cloud.Transient: vpcport.Transient,
	cloud.Permission: vpcport.Forbidden, cloud.Bug: vpcport.Invalid,
}

// classified converts the error of an EC2 call into a provider error.
func classified(op string, err error) error {
	e, ok := errors.AsType[*cloud.Error](err)
	if !ok {
		return &vpcport.Error{Class: vpcport.Transient, Op: op, Message: err.Error(), Err: err}
	}
	class, known := byCode[e.Code]
	if !known {
		class = byClass[e.Class]
	}
	return &vpcport.Error{Class: class, Op: op, Type: e.Code, Message: err.Error(), Err: err}
}

// code returns EC2's error code, or an empty string.
func code(err error) string {
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		return e.Code
	}
	return ""
}

// failure returns an error of the provider itself.
func failure(class vpcport.Class, op, format string, args ...any) error {
	return &vpcport.Error{Class: class, Op: op, Message: fmt.Sprintf(format, args...)}
}
