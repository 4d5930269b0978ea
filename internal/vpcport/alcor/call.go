package alcor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// call makes a request and decodes the reply into to, unless that is nil. It ends with ctx or after
// Settings.Timeout.
func (p *Provider) call(ctx context.Context, r rest.Request, to any) error {
	ctx, cancel := context.WithTimeout(ctx, p.settings.Timeout)
	defer cancel()
	req, err := p.newRequest(ctx, r)
	if err != nil {
		return rest.BadRequest(r.Op(), "%v", err)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return rest.Unanswered(r.Op(), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		return refusal(r, resp, body) // as far as the body was read
	case err != nil:
		return rest.Unanswered(r.Op(), err)
	case to == nil:
		return nil
	}
	if err := json.Unmarshal(body, to); err != nil {
		return rest.Unanswered(r.Op(), err)
	}
	return nil
}

func (p *Provider) newRequest(ctx context.Context, r rest.Request) (*http.Request, error) {
	at := p.base.JoinPath("project", p.settings.Project, r.Path)
	at.RawQuery = r.Query.Encode()
	var body io.Reader
	if r.Body != nil {
		raw, err := json.Marshal(r.Body)
		if err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, at.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", p.settings.Agent)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

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
func refusal(r rest.Request, resp *http.Response, body []byte) error {
	kind, message := read(body)
	out := rest.Refused(r.Op(), resp.StatusCode, resp.Header, kind, message)
	out.Class = classify(resp.StatusCode, message, r, out.RetryAfter)
	out.About = r.Names.About(out.Class, message)
	return out
}

// classify is the class of a status and a message.
func classify(status int, message string, r rest.Request, retryAfter time.Duration) vpcport.Class {
	if class, ok := rest.ByStatus(status, retryAfter); ok {
		return class
	}
	if status == http.StatusRequestHeaderFieldsTooLarge {
		return vpcport.TooLarge
	}
	message = strings.ToLower(message)
	for _, s := range messages {
		if strings.Contains(message, s.text) {
			return s.class
		}
	}
	switch {
	case strings.Contains(message, noAddress) && len(r.Names.IPs) > 0:
		return vpcport.AddressTaken
	case strings.Contains(message, noAddress):
		return vpcport.SubnetFull
	case status == http.StatusNotFound && r.Port && strings.Contains(message, noPort):
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
