package vpc

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Error is a refusal with EC2's code, HTTP status and wording
// (EC2 API Reference, "Error codes for the Amazon EC2 API").
type Error struct {
	Code    string
	Status  int
	Message string
}

// Error reads "InvalidSubnetID.NotFound: The subnet ID ... does not exist".
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// CodeOf is the EC2 code of an error, "" for nil, "InternalError" for one that has none.
func CodeOf(err error) string {
	if err == nil {
		return ""
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return "InternalError"
}

// Errorf makes a client error (HTTP 400).
func Errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return Errorf("InvalidParameterValue", format, args...)
}

func badCombination(format string, args ...any) *Error {
	return Errorf("InvalidParameterCombination", format, args...)
}

// idKinds are the resources by the prefix of their IDs, with the codes and the
// words that EC2 uses for them. Its spelling of ID and Id is not regular.
var idKinds = map[string]struct{ notFound, malformed, words string }{
	"i":          {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "instance ID"},
	"eni":        {"InvalidNetworkInterfaceID.NotFound", "InvalidNetworkInterfaceId.Malformed", "networkInterface ID"},
	"eni-attach": {"InvalidAttachmentID.NotFound", "InvalidNetworkInterfaceAttachmentId.Malformed", "attachment ID"},
	// The code for a malformed ID of an association is a guess.
	"trunk-assoc": {"InvalidAssociationID.NotFound", "InvalidAssociationID.Malformed", "association ID"},
	"subnet":      {"InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed", "subnet ID"},
	"vpc":         {"InvalidVpcID.NotFound", "InvalidVpcID.Malformed", "vpc ID"},
	"sg":          {"InvalidGroup.NotFound", "InvalidGroupId.Malformed", "security group"},
	"rtb":         {"InvalidRouteTableID.NotFound", "InvalidRouteTableId.Malformed", "routeTable ID"},
}

// NotFound is the error for an ID of a kind ("eni", "subnet", ...) that does
// not exist, or that is not an ID of that kind at all (Malformed).
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
