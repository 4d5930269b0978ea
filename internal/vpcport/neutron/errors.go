package neutron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// byType are the classes of Neutron's exceptions (neutron-lib exceptions, neutron
// ipam/exceptions.py), as far as the status alone does not tell.
var byType = map[string]vpcport.Class{
	"IpAddressGenerationFailure": vpcport.SubnetFull, "IpAddressGenerationFailureAllSubnets": vpcport.SubnetFull,
	"IpAddressGenerationFailureNoMatchingSubnet": vpcport.Invalid, "ExternalIpAddressExhausted": vpcport.SubnetFull,
	"IpAddressAlreadyAllocated": vpcport.AddressTaken, "IpAddressInUse": vpcport.AddressTaken,
	"MacAddressInUse": vpcport.MACTaken, "OverQuota": vpcport.OverQuota,
	"NetworkNotFound": vpcport.NetworkGone, "SubnetNotFound": vpcport.ReferenceGone, "SecurityGroupNotFound": vpcport.ReferenceGone,
	"PortNotFound": vpcport.PortGone, "HTTPNotFound": vpcport.PortGone, "RevisionNumberConstraintFailed": vpcport.Stale,
}

// scope is what is known of a request whose failure is judged.
type scope struct {
	keystone bool
	port     bool // the request is of one port, by its ID
	names    rest.Names
}

// failure makes an error of a failed request.
func failure(op string, err error, s scope) error {
	if own, ok := errors.AsType[*vpcport.Error](err); ok {
		return own
	}
	// Neutron no longer takes the token, and Keystone gives no other: what Keystone says
	// is what counts.
	if again, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok {
		return failure(opToken, again.ErrReauth, scope{keystone: true})
	}
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refusal(op, refused, s)
	}
	out := &vpcport.Error{Class: vpcport.Transient, Op: op, Err: err}
	if in, ok := errors.AsType[*url.Error](err); ok {
		out.Err = in.Err // without the URL, which may be long
	}
	wrongType := (*json.UnmarshalTypeError)(nil)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		out.Message = "no reply in time"
	case errors.Is(err, rest.ErrReplyTooLarge), errors.As(err, &wrongType):
		out.Class = vpcport.Bug
	}
	return out
}

// refusal judges a reply that is no success.
func refusal(op string, r gophercloud.ErrUnexpectedResponseCode, s scope) error {
	told := read(r.Body)
	out := &vpcport.Error{Op: op, Status: r.Actual, Type: told.kind, Message: told.message, RetryAfter: rest.RetryAfter(r.ResponseHeader)}
	out.Class = classify(r.Actual, told, s, out.RetryAfter > 0)
	if r.Actual >= 300 && r.Actual < 400 {
		out.Message = fmt.Sprintf("it answers with a redirect to %q, which is not followed", rest.Shorten(r.ResponseHeader.Get("Location"), rest.MaxMessage))
	}
	if out.Message == "" {
		out.Message = http.StatusText(r.Actual)
	}
	out.About = s.names.About(out.Class, told.message)
	return out
}

// classify is the class of a status with Neutron's type.
func classify(status int, told told, s scope, comesBack bool) vpcport.Class {
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable && comesBack:
		return vpcport.Throttled
	case status >= 500 || status == http.StatusRequestTimeout:
		return vpcport.Transient
	case status == http.StatusUnauthorized:
		return vpcport.Unauthorized
	case status == http.StatusForbidden:
		return vpcport.Forbidden
	case status == http.StatusRequestEntityTooLarge || status == http.StatusRequestURITooLong:
		return vpcport.TooLarge
	case status == http.StatusPreconditionFailed:
		return vpcport.Stale
	case s.keystone || status < 400:
		return vpcport.Invalid
	}
	class, known := byType[told.kind]
	switch {
	case class == vpcport.PortGone && !s.port:
		return vpcport.Transient // one on which a page or a batch hung
	case known:
		return class
	case status == http.StatusNotFound:
		return vpcport.Transient // not of Neutron: nothing is told of the port by a proxy without a backend
	case status == http.StatusConflict:
		return vpcport.Conflict
	default:
		return vpcport.Invalid
	}
}

// told is what an error's body says.
type told struct{ kind, message string }

// read reads the bodies of Neutron, Keystone and what may be in between.
func read(body []byte) told {
	var e struct {
		Neutron json.RawMessage `json:"NeutronError"`
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(body, &e) != nil {
		text := string(body)
		if strings.Contains(text, "<") { // a page for people
			text = ""
		}
		return told{message: rest.Shorten(text, rest.MaxMessage)}
	}
	for _, raw := range []json.RawMessage{e.Neutron, e.Error} {
		var in struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		}
		var text string
		switch {
		case len(raw) == 0:
		case json.Unmarshal(raw, &in) == nil && in.Message != "":
			return told{rest.Shorten(in.Type, rest.MaxWord), rest.Shorten(in.Message, rest.MaxMessage)}
		case json.Unmarshal(raw, &text) == nil:
			return told{message: rest.Shorten(text, rest.MaxMessage)}
		}
	}
	return told{message: rest.Shorten(e.Message, rest.MaxMessage)}
}
