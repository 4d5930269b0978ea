package aws

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// codes sorts EC2's error codes (EC2 API Reference, "Error codes", and the
// codes common to AWS services). A code not listed falls to suffixes, then to
// the HTTP status: 429 is Throttled, 5xx Transient, the rest Bug.
//
//	Throttled     RequestLimitExceeded and its kin
//	SubnetFull    no free address, no free aligned prefix, or no IPv6 block at all
//	LimitReached  *LimitExceeded: addresses or groups of an ENI, ENIs or branches of an instance, other quotas
//	Gone          *.NotFound, whatever it names
//	Conflict      *.InUse, wrong state, address or VLAN taken
//	Permission    IAM, credentials, signature, clock skew, account not active
//	Transient     EC2's own failures
//	Bug           the request: IdempotentParameterMismatch, malformed IDs and parameters
var codes = map[string]cloud.Class{
	"RequestLimitExceeded":      cloud.Throttled,
	"RequestThrottled":          cloud.Throttled,
	"RequestThrottledException": cloud.Throttled,
	"Throttling":                cloud.Throttled,
	"ThrottlingException":       cloud.Throttled,
	"ThrottledException":        cloud.Throttled,
	"EC2ThrottledException":     cloud.Throttled,
	"TooManyRequestsException":  cloud.Throttled,
	"BandwidthLimitExceeded":    cloud.Throttled,
	"PriorRequestNotComplete":   cloud.Throttled,
	"SlowDown":                  cloud.Throttled,

	"InsufficientFreeAddressesInSubnet": cloud.SubnetFull,
	"InsufficientCidrBlocks":            cloud.SubnetFull,

	"ResourceCountExceeded":             cloud.LimitReached,
	"FilterLimitExceeded":               cloud.Bug,
	"NetworkInterfaceNotFoundException": cloud.Gone,
	"InvalidSubnet":                     cloud.Gone,
	"Resource.AlreadyAssigned":          cloud.Conflict,
	"Resource.AlreadyAssociated":        cloud.Conflict,
	"IncorrectState":                    cloud.Conflict,
	"IncorrectInstanceState":            cloud.Conflict,
	"InvalidInstanceState":              cloud.Conflict,
	"InvalidState":                      cloud.Conflict,
	"DependencyViolation":               cloud.Conflict,
	"ConcurrentTagAccess":               cloud.Conflict,
	"InvalidVlanId.Duplicate":           cloud.Conflict, // AssociateTrunkInterface, whose errors are undocumented

	"AccessDenied":                      cloud.Permission,
	"AccessDeniedException":             cloud.Permission,
	"AuthFailure":                       cloud.Permission,
	"Blocked":                           cloud.Permission,
	"ExpiredToken":                      cloud.Permission,
	"ExpiredTokenException":             cloud.Permission,
	"IncompleteSignature":               cloud.Permission,
	"InvalidAccessKeyId":                cloud.Permission,
	"InvalidClientTokenId":              cloud.Permission,
	"InvalidSecurity.RequestHasExpired": cloud.Permission,
	"InvalidSignatureException":         cloud.Permission,
	"MissingAuthenticationToken":        cloud.Permission,
	"OptInRequired":                     cloud.Permission,
	"PendingVerification":               cloud.Permission,
	"RequestExpired":                    cloud.Permission,
	"SignatureDoesNotMatch":             cloud.Permission,
	"UnauthorizedOperation":             cloud.Permission,
	"UnrecognizedClientException":       cloud.Permission,

	"InternalError":       cloud.Transient,
	"InternalFailure":     cloud.Transient,
	"InternalServerError": cloud.Transient,
	"RequestTimeout":      cloud.Transient,
	"ServiceUnavailable":  cloud.Transient,
	"Unavailable":         cloud.Transient,

	"IdempotentParameterMismatch": cloud.Bug,
	"OperationNotPermitted":       cloud.Bug,
	"DryRunOperation":             cloud.Bug,
}

// expired lists the error codes that new credentials may resolve. The call had no effect.
var expired = map[string]bool{
	"ExpiredToken":          true,
	"ExpiredTokenException": true,
	"RequestExpired":        true,
	"InvalidClientTokenId":  true,
	"InvalidAccessKeyId":    true,
}

// phrases classify errors with one of EC2's two catch-all codes by message, as observed.
var phrases = []struct {
	part  string
	class cloud.Class
}{
	{"already has an interface attached", cloud.Conflict},            // AttachNetworkInterface: the device index is taken
	{"is already attached", cloud.Conflict},                          // AttachNetworkInterface
	{"move is not allowed", cloud.Conflict},                          // AssignPrivateIpAddresses, CreateNetworkInterface: a named address is taken
	{"currently in use", cloud.Conflict},                             // DeleteNetworkInterface while detaching
	{"not assigned to", cloud.Gone},                                  // UnassignPrivateIpAddresses, UnassignIpv6Addresses
	{"sufficient free ipv4 addresses or prefixes", cloud.SubnetFull}, // CreateNetworkInterface, AssignPrivateIpAddresses
	{"sufficient free ipv6 addresses or prefixes", cloud.SubnetFull}, //
	{"not enough free addresses", cloud.SubnetFull},                  //
	{"does not contain any ipv6 cidr block", cloud.SubnetFull},       // AssignIpv6Addresses, RunInstances: the subnet has IPv4 only
	{"does not exist", cloud.Gone},                                   // deleted subnet or group
}

// classOf classifies an EC2 error.
func classOf(code, message string, status int) cloud.Class {
	code = strings.TrimPrefix(strings.TrimPrefix(code, "Client."), "Server.")
	if c, ok := codes[code]; ok {
		return c
	}
	if code == "InvalidParameterValue" || code == "InvalidParameter" {
		message = strings.ToLower(message)
		for _, p := range phrases {
			if strings.Contains(message, p.part) {
				return p.class
			}
		}
	}
	switch {
	case strings.HasSuffix(code, "NotFound"):
		return cloud.Gone
	case strings.HasSuffix(code, ".InUse"):
		return cloud.Conflict
	case strings.HasSuffix(code, "LimitExceeded"):
		return cloud.LimitReached
	case status == http.StatusTooManyRequests:
		return cloud.Throttled
	case status >= 500:
		return cloud.Transient
	}
	return cloud.Bug
}

// fail converts an SDK error to a *cloud.Error.
func fail(op string, err error) *cloud.Error {
	e := &cloud.Error{Op: op, Err: err}
	if creds, ok := errors.AsType[*noCredentials](err); ok {
		e.Err, e.Class = creds, credentialsClass(creds.err)
		return e
	}
	if _, ok := errors.AsType[*badAnswer](err); ok {
		e.Class = cloud.Transient
		return e
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		status := statusOf(err)
		e.Code, e.Message = api.ErrorCode(), api.ErrorMessage()
		e.Class = classOf(e.Code, e.Message, status)
		if e.Code == unknownCode {
			// The error page of a proxy.
			e.Class, e.Message = cloud.Transient, http.StatusText(status)
			if status >= 400 && status < 500 && status != http.StatusRequestTimeout {
				e.Class = classOf("", "", status)
			}
		}
		return e
	}
	e.Class = plainClass(err)
	return e
}

// unknownCode is the code the SDK gives an error reply that has none.
const unknownCode = "UnknownError"

// replied is an error reply: the SDK has a type of its own for those of container credentials endpoints.
type replied interface {
	error
	HTTPStatusCode() int
}

// statusOf returns the HTTP status of the reply; 0 when there was none.
func statusOf(err error) int {
	if r, ok := errors.AsType[replied](err); ok {
		return r.HTTPStatusCode()
	}
	return 0
}

// unanswered reports whether there was no reply.
func unanswered(err error) bool {
	_, send := errors.AsType[*smithyhttp.RequestSendError](err)
	_, canceled := errors.AsType[*smithy.CanceledError](err)
	return send || canceled || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// plainClass classifies an error without an EC2 error code.
func plainClass(err error) cloud.Class {
	_, parse := errors.AsType[*smithy.DeserializationError](err)
	_, params := errors.AsType[*smithy.InvalidParamsError](err)
	_, serialize := errors.AsType[*smithy.SerializationError](err)
	switch status := statusOf(err); {
	case parse, unanswered(err):
		return cloud.Transient
	case status == http.StatusTooManyRequests:
		return cloud.Throttled
	case params, serialize, status >= 400 && status < 500: // our own bug
		return cloud.Bug
	}
	return cloud.Transient
}

// credentialsClass classifies an error of fetching credentials: Transient if their source did not reply,
// Permission if it replied that there are none.
func credentialsClass(err error) cloud.Class {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		switch classOf(api.ErrorCode(), api.ErrorMessage(), statusOf(err)) {
		case cloud.Transient, cloud.Throttled:
			return cloud.Transient
		}
		return cloud.Permission
	}
	if s := statusOf(err); unanswered(err) || s >= 500 || s == http.StatusTooManyRequests {
		return cloud.Transient
	}
	return cloud.Permission
}
