package alcor

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// messages are the classes of messages of Alcor's managers, in lower case: the reasons of their exceptions
// (@ResponseStatus). Reasons of the managers of addresses, nodes and groups are within the message of
// the port manager, with status 500. The first match counts.
var messages = []struct {
	text  string
	class vpcport.Class
}{
	{"ip address conflict with exist", vpcport.AddressTaken},     // private IP manager, IpAddrConflictException
	{"ip address number not enough", vpcport.SubnetFull},         // IpAddrNotEnoughException
	{"ip address invalid", vpcport.Invalid},                      // IpAddrInvalidException
	{"this mac address is not unique", vpcport.MACTaken},         // MAC manager, MacAddressUniquenessViolationException
	{"get vpcentity exception", vpcport.NetworkGone},             // port manager, GetVpcEntityException
	{"vpc entity not found", vpcport.NetworkGone},                // VpcEntityNotFound
	{"get subnetentity exception", vpcport.ReferenceGone},        // GetSubnetEntityException
	{"subnet entity not found", vpcport.ReferenceGone},           // SubnetEntityNotFound
	{"get securitygroupentity exception", vpcport.ReferenceGone}, // GetSecurityGroupException
	{"security group entity not found", vpcport.ReferenceGone},   // SecurityGroupEntityNotFound
	{noNode, vpcport.Conflict},                                   // GetNodeInfoException
	{"node info not found", vpcport.Conflict},                    // NodeInfoNotFound
	{"network id is required", vpcport.Invalid},                  // NetworkIdRequired
	{"fixed ips invalid", vpcport.Invalid},                       // FixedIpsInvalid
	{"mac address invalid", vpcport.Invalid},                     // MacAddressInvalid
}

const (
	// noNode is the message for a host that the node manager does not have.
	noNode = "get node information exception"
	// noAddress is the message for any failed allocation of an address (AllocateIpAddrException).
	noAddress = "allocate ip address error"
	// noPort is the message for a port that does not exist (PortEntityNotFound). A 404 of a proxy does
	// not have it.
	noPort = "port not found"
)

// refusal is the error of an unsuccessful reply.
func refusal(r request, resp *http.Response, body []byte) error {
	kind, message := read(body)
	out := rest.Refused(r.op(), resp.StatusCode, resp.Header, kind, message)
	out.Class = classify(resp.StatusCode, message, r, out.RetryAfter > 0)
	out.About = r.names.About(out.Class, message)
	return out
}

// byStatus are the classes of statuses whose message does not matter. 502, 503 and 504 come from
// proxies.
var byStatus = map[int]vpcport.Class{
	http.StatusTooManyRequests: vpcport.Throttled,
	http.StatusBadGateway:      vpcport.Transient, http.StatusServiceUnavailable: vpcport.Transient, http.StatusGatewayTimeout: vpcport.Transient,
	http.StatusRequestTimeout: vpcport.Transient,
	http.StatusUnauthorized:   vpcport.Unauthorized, http.StatusForbidden: vpcport.Forbidden,
	http.StatusRequestEntityTooLarge: vpcport.TooLarge, http.StatusRequestURITooLong: vpcport.TooLarge, http.StatusRequestHeaderFieldsTooLarge: vpcport.TooLarge,
}

// classify is the class of a status and a message.
func classify(status int, message string, r request, comesBack bool) vpcport.Class {
	if status == http.StatusServiceUnavailable && comesBack {
		return vpcport.Throttled
	}
	if class, ok := byStatus[status]; ok {
		return class
	}
	message = strings.ToLower(message)
	for _, s := range messages {
		if strings.Contains(message, s.text) {
			return s.class
		}
	}
	switch {
	case strings.Contains(message, noAddress) && len(r.names.IPs) > 0:
		return vpcport.AddressTaken
	case strings.Contains(message, noAddress):
		return vpcport.SubnetFull
	case status == http.StatusNotFound && r.port && strings.Contains(message, noPort):
		return vpcport.PortGone
	case status == http.StatusNotFound || status >= 500:
		return vpcport.Transient
	case status == http.StatusConflict:
		return vpcport.Conflict
	default: // 400 and 412 (PRECONDITION_FAILED), by which Alcor refuses requests
		return vpcport.Invalid
	}
}

// hostRefused reports whether Alcor refused the host of a request.
func hostRefused(err error) bool {
	e, ok := err.(*vpcport.Error) //nolint:errorlint // refusal makes them
	return ok && strings.Contains(strings.ToLower(e.Message), noNode)
}

// read reads the body that Spring makes of an exception: timestamp, status, error, message
// and path; or whatever else there is.
func read(body []byte) (kind, message string) {
	var e struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &e) != nil {
		return "", rest.Text(body)
	}
	if e.Message == "No message available" { // Spring's words for none
		e.Message = ""
	}
	return e.Error, e.Message
}
