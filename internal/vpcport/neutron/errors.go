package neutron

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/berthnet/berth/internal/vpcport"
)

// classes are those of Neutron's own errors, by their type (neutron-lib, exceptions, and
// neutron's ipam.exceptions). What is not here is sorted by its HTTP status.
var classes = map[string]vpcport.Class{
	"InvalidIpForNetwork": vpcport.Invalid, "InvalidIpForSubnet": vpcport.Invalid, "InvalidInput": vpcport.Invalid,
	"NetworkNotFound": vpcport.NetworkGone, "SubnetNotFound": vpcport.ReferenceGone, "SecurityGroupNotFound": vpcport.ReferenceGone,
	"PortNotFound":                         vpcport.PortGone,
	"IpAddressGenerationFailure":           vpcport.SubnetFull,
	"IpAddressGenerationFailureAllSubnets": vpcport.SubnetFull,
	"IpAddressAlreadyAllocated":            vpcport.AddressTaken, "IpAddressInUse": vpcport.AddressTaken,
	"MacAddressInUse": vpcport.MACTaken, "OverQuota": vpcport.OverQuota, "PolicyNotAuthorized": vpcport.Forbidden,
	"RevisionNumberConstraintFailed": vpcport.Stale,
}

// byStatus is the class of an error that says no more than its HTTP status.
func byStatus(status int) vpcport.Class {
	switch {
	case status == http.StatusUnauthorized:
		return vpcport.Unauthorized
	case status == http.StatusForbidden:
		return vpcport.Forbidden
	case status == http.StatusNotFound: // of a path that Neutron does not have, such as one behind another proxy
		return vpcport.Bug
	case status == http.StatusConflict:
		return vpcport.Conflict
	case status == http.StatusPreconditionFailed:
		return vpcport.Stale
	case status == http.StatusRequestEntityTooLarge, status == http.StatusRequestURITooLong:
		return vpcport.TooLarge
	case status == http.StatusTooManyRequests:
		return vpcport.Throttled
	case status >= 500:
		return vpcport.Transient
	case status >= 400:
		return vpcport.Invalid
	}
	return vpcport.Bug // what is no error and not what was asked for
}

// failed is a call's error as the rest of Berth sees it.
func failed(op string, err error) error {
	if _, ok := errors.AsType[*vpcport.Error](err); ok || err == nil {
		return err
	}
	if _, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok {
		return &vpcport.Error{Class: vpcport.Unauthorized, Op: op, Status: http.StatusUnauthorized, Message: "the token expired, and Keystone gives no other", Err: err}
	}
	refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	if !ok {
		return &vpcport.Error{Class: vpcport.Transient, Op: op, Err: err}
	}
	return answered(op, refused.Actual, refused.ResponseHeader, refused.Body)
}

const maxMessage = 512 // bytes of a message that is shown to people

// answered is the error that Neutron, or somebody on the way, answered with.
func answered(op string, status int, header http.Header, body []byte) *vpcport.Error {
	var said struct {
		NeutronError json.RawMessage `json:"NeutronError"`
	}
	var detail struct{ Type, Message string }
	if json.Unmarshal(body, &said) != nil || json.Unmarshal(said.NeutronError, &detail) != nil {
		detail.Message = strings.Join(strings.Fields(string(body)), " ") // a proxy's, or of the form of old: a text
	}
	if len(detail.Message) > maxMessage {
		detail.Message = strings.ToValidUTF8(detail.Message[:maxMessage], "") + "..."
	}
	class, known := classes[detail.Type]
	if !known || status >= 500 {
		class = byStatus(status)
	}
	e := &vpcport.Error{Class: class, Op: op, Status: status, Type: detail.Type, Message: detail.Message, About: about(class, detail.Message)}
	// A 503 that says when to come back is one of a server that has too much to do.
	if wait := retryAfter(header); wait > 0 && (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) {
		e.Class, e.RetryAfter = vpcport.Throttled, wait
	}
	return e
}

var (
	uuid = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	macs = regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`)
	ips  = regexp.MustCompile(`(?i)\baddress ([0-9a-f.:]+)`)
)

// about is what a message is about: Neutron says it in words only.
func about(class vpcport.Class, message string) string {
	switch class {
	case vpcport.MACTaken:
		return macs.FindString(message)
	case vpcport.AddressTaken, vpcport.Invalid:
		if m := ips.FindStringSubmatch(message); m != nil {
			return strings.TrimRight(m[1], ".:")
		}
		return ""
	default:
		return uuid.FindString(message)
	}
}

// maxRetryAfter bounds what a server may ask to wait.
const maxRetryAfter = 5 * time.Minute

// retryAfter is how long a server asks to wait, in seconds (RFC 9110, section 10.2.3); 0
// when it does not, or by a date.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(min(seconds, 3600))*time.Second, maxRetryAfter)
}
