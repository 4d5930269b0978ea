package vpc

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Error is an error with EC2's code, HTTP status and message
// (EC2 API Reference, "Error codes for the Amazon EC2 API").
type Error struct {
	Code    string
	Status  int
	Message string
}

// Error reads "InvalidSubnetID.NotFound: The subnet ID ... does not exist".
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// CodeOf returns the EC2 code of an error, "" for nil, or "InternalError" for an error without a code.
func CodeOf(err error) string {
	if err == nil {
		return ""
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return "InternalError"
}

// Errorf returns a client error (HTTP 400).
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return Errorf("InvalidParameterValue", format, args...)
}

func badCombination(format string, args ...any) *Error {
	return Errorf("InvalidParameterCombination", format, args...)
}

// idKinds maps the prefixes of IDs to resources, with EC2's error codes and names, whose spelling of ID and
// Id is inconsistent.
var idKinds = map[string]struct{ notFound, malformed, words string }{
	"i":          {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "instance ID"},
	"eni":        {"InvalidNetworkInterfaceID.NotFound", "InvalidNetworkInterfaceId.Malformed", "networkInterface ID"},
	"eni-attach": {"InvalidAttachmentID.NotFound", "InvalidNetworkInterfaceAttachmentId.Malformed", "attachment ID"},
	// The code for a malformed association ID is a guess.
	"trunk-assoc": {"InvalidAssociationID.NotFound", "InvalidAssociationID.Malformed", "association ID"},
	"subnet":      {"InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed", "subnet ID"},
	"vpc":         {"InvalidVpcID.NotFound", "InvalidVpcID.Malformed", "vpc ID"},
	"sg":          {"InvalidGroup.NotFound", "InvalidGroupId.Malformed", "security group"},
	"rtb":         {"InvalidRouteTableID.NotFound", "InvalidRouteTableId.Malformed", "routeTable ID"},
}

// NotFound returns the error for an ID of a kind ("eni", "subnet", ...) that does not exist, or that is not
// a valid ID of that kind (Malformed).
func NotFound(kind string, ids ...string) *Error {
	k := idKinds[kind]
	for _, id := range ids {
		if !wellFormed(kind, id) {
			return Errorf(k.malformed, "Invalid id: %q (expecting \"%s-...\")", id, kind)
		}
	}
	if len(ids) > 1 {
		return Errorf(k.notFound, "The %ss '%s' do not exist", k.words, strings.Join(ids, ", "))
	}
	return Errorf(k.notFound, "The %s '%s' does not exist", k.words, strings.Join(ids, ", "))
}

func wellFormed(kind, id string) bool {
	hex, ok := strings.CutPrefix(id, kind+"-")
	if !ok || len(hex) != 8 && len(hex) != 17 {
		return false
	}
	return strings.Trim(hex, "0123456789abcdef") == ""
}
