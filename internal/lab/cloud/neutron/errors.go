package neutron

import (
	"errors"
	"net/http"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
)

// answers are Neutron's to what the books refuse: HTTP status and type, and the words
// with what it is about behind them (neutron-lib, exceptions).
var answers = map[vpcport.Class]struct {
	status      int
	kind, words string
}{
	vpcport.NetworkGone:   {http.StatusNotFound, "NetworkNotFound", "Network %s could not be found."},
	vpcport.ReferenceGone: {http.StatusNotFound, "SubnetNotFound", "Subnet %s could not be found."},
	vpcport.PortGone:      {http.StatusNotFound, "PortNotFound", "Port %s could not be found."},
	vpcport.SubnetFull:    {http.StatusConflict, "IpAddressGenerationFailure", "No more IP addresses available for subnet %s."},
	vpcport.AddressTaken:  {http.StatusConflict, "IpAddressAlreadyAllocated", "IP address %s already allocated in subnet."},
	vpcport.MACTaken:      {http.StatusConflict, "MacAddressInUse", "Unable to complete operation for network. The mac address %s is in use."},
	vpcport.OverQuota:     {http.StatusConflict, "OverQuota", "Quota exceeded for resources: ['port']."},
	vpcport.Stale:         {http.StatusPreconditionFailed, "RevisionNumberConstraintFailed", "Constrained to another revision."},
	vpcport.Invalid:       {http.StatusBadRequest, "InvalidIpForSubnet", "IP address %s is not a valid IP for the specified subnet."},
	vpcport.Forbidden:     {http.StatusForbidden, "PolicyNotAuthorized", "(rule:create_port and rule:create_port:mac_address) is disallowed by policy"},
	vpcport.TooLarge:      {http.StatusRequestEntityTooLarge, "HTTPRequestEntityTooLarge", "Request is too large."},
}

// failed answers what the books refused.
func failed(w http.ResponseWriter, err error) {
	a, known := answers[vpcport.ClassOf(err)]
	if !known {
		refuse(w, http.StatusInternalServerError, "HTTPInternalServerError", "Request Failed: internal server error while processing your request.")
		return
	}
	about := ""
	if e, ok := errors.AsType[*vpcport.Error](err); ok {
		about = e.About
	}
	refuse(w, a.status, a.kind, strings.Replace(a.words, "%s", about, 1))
}

// refuse answers as Neutron does.
func refuse(w http.ResponseWriter, status int, kind, message string) {
	answer(w, status, "NeutronError", map[string]string{"type": kind, "message": message, "detail": ""})
}
