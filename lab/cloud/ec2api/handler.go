// Package ec2api serves a vpc.Cloud as the EC2 Query API (Amazon EC2 API Reference, version 2016-11-15):
// signed form posts and XML replies, with EC2's parameters, errors, filters and pagination. Any AWS SDK
// and the aws command can use it through an endpoint URL.
//
// It refuses unknown parameters with UnknownParameter, so that clients notice that they have no effect.
package ec2api

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

// apiVersion is the only supported version of the API.
const apiVersion = "2016-11-15"

// mediaType is the media type of all replies.
const mediaType = "text/xml;charset=UTF-8"

// noRequest is the request ID for invalid HTTP requests.
const noRequest = "00000000-1ab0-4ec2-8001-000000000000"

// maxBody is the maximum size of a request in bytes. The largest valid one, CreateTags with 1,000 resources
// and 50 tags, needs half of it.
const maxBody = 256 << 10

type handler struct {
	cloud   *vpc.Cloud
	actions map[string]action
	next    atomic.Uint64 // number of the last request
}

// Handler serves the EC2 Query API of a cloud at every path.
func Handler(cloud *vpc.Cloud) http.Handler { return &handler{cloud: cloud, actions: actions()} }

// ServeHTTP serves one call: it authenticates the caller, applies throttling, faults and permissions, runs
// the action and replies.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cloud.API.Down() {
		httpreply.HangUp(w)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		h.refuse(w, unread(err))
		return
	}
	req, failure := h.read(r, body)
	if failure != nil {
		h.cloud.API.Finish(req.call, failure.Code)
		h.refuse(w, failure)
		return
	}
	v := h.cloud.API.Admit(req.call)
	if !h.wait(v.Latency) || v.LoseRequest {
		h.cloud.API.Finish(req.call, "LostRequest")
		httpreply.HangUp(w)
		return
	}
	if v.Err != nil {
		h.cloud.API.Finish(req.call, v.Err.Code)
		h.refuse(w, v.Err)
		return
	}
	reply, err := h.actions[req.call.Action](req)
	switch {
	case v.LoseReply:
		h.cloud.API.Finish(req.call, "LostReply")
		httpreply.HangUp(w)
	case err != nil:
		h.cloud.API.Finish(req.call, vpc.CodeOf(err))
		h.refuse(w, err)
	default:
		h.cloud.API.Finish(req.call, "")
		h.reply(w, r, req.call.Action, reply, v.Falsify)
	}
}

// unread returns the error for an unreadable request body.
func unread(err error) *vpc.Error {
	switch tooLarge, slow := (*http.MaxBytesError)(nil), net.Error(nil); {
	case errors.As(err, &tooLarge):
		return &vpc.Error{Code: "RequestTooLarge", Status: http.StatusRequestEntityTooLarge,
			Message: fmt.Sprintf("The request is larger than %d bytes.", tooLarge.Limit)}
	case errors.As(err, &slow) && slow.Timeout():
		return &vpc.Error{Code: "RequestTimeout", Status: http.StatusRequestTimeout, Message: "The request's body did not arrive in time."}
	default:
		return vpc.Errorf("MalformedQueryString", "The request's body cannot be read: %v", err)
	}
}

// request is one authenticated call.
type request struct {
	*params
	cloud  *vpc.Cloud
	call   vpc.Call
	dryRun bool
}

// read parses and authenticates a call. On error, the request contains what has been parsed.
func (h *handler) read(r *http.Request, body []byte) (*request, *vpc.Error) {
	req := &request{cloud: h.cloud, call: vpc.Call{Action: "(none)"}}
	form, err := url.ParseQuery(string(body))
	if err != nil || r.Method != http.MethodPost && r.Method != http.MethodGet {
		return req, vpc.Errorf("MalformedQueryString", "The request is not a form post.")
	}
	for k, v := range r.URL.Query() {
		if !strings.HasPrefix(k, presignedPrefix) {
			form[k] = append(form[k], v...)
		}
	}
	name := form.Get("Action")
	_, known := h.actions[name]
	if known {
		req.call.Action = name
	}
	who, failure := h.authenticate(r, body)
	if failure != nil {
		return req, failure
	}
	req.call.Principal, req.call.Params = who, form
	if req.params, failure = parse(form); failure != nil {
		return req, failure
	}
	switch {
	case name == "":
		return req, vpc.Errorf("MissingAction", "The request must contain the parameter Action")
	case !known:
		return req, vpc.Errorf("InvalidAction", "The action %s is not valid for this web service.", name)
	}
	return req, req.check()
}

// check performs the checks that all actions have in common.
func (r *request) check() *vpc.Error {
	switch r.values["Version"] {
	case apiVersion:
	case "":
		return vpc.Errorf("MissingParameter", "The request must contain the parameter Version")
	default:
		return vpc.Errorf("NoSuchVersion", "The requested version (%s) of the service does not exist; the lab speaks %s.", r.values["Version"], apiVersion)
	}
	r.dryRun, _ = r.truth("DryRun")
	r.call.Targets = targets(r.call.Action, r.params)
	r.call.Unbounded = strings.HasPrefix(r.call.Action, "Describe") && len(r.values) == 2
	return r.err
}

// ready ends the reading of parameters. It returns the first error, an error for an unknown parameter, or
// the result of a dry run.
func (r *request) ready() error {
	if r.err != nil {
		return r.err
	}
	if name := r.unknown(); name != "" {
		return vpc.Errorf("UnknownParameter", "The parameter %s is not recognized", name)
	}
	if r.dryRun {
		return &vpc.Error{Code: "DryRunOperation", Status: http.StatusPreconditionFailed,
			Message: "Request would have succeeded, but DryRun flag is set."}
	}
	return nil
}

// wait waits for d on the cloud's clock, and returns false if the lab closes first. As with EC2, a call
// proceeds even if the client gives up.
func (h *handler) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-h.cloud.Clock().After(d):
		return true
	case <-h.cloud.Done():
		return false
	}
}

// requestID returns a new request ID for a reply.
func (h *handler) requestID() string {
	n := h.next.Add(1)
	return fmt.Sprintf("%08x-1ab0-4ec2-8001-%012x", uint32(n), n)
}

func (h *handler) reply(w http.ResponseWriter, r *http.Request, action string, reply any, falsify func([]byte) []byte) {
	var b bytes.Buffer
	start := xml.StartElement{Name: xml.Name{Local: action + "Response"}, Attr: []xml.Attr{
		{Name: xml.Name{Local: "xmlns"}, Value: "http://ec2.amazonaws.com/doc/" + apiVersion + "/"},
	}}
	if err := xml.NewEncoder(&b).EncodeElement(reply, start); err != nil {
		h.refuse(w, err)
		return
	}
	root, rest, _ := bytes.Cut(b.Bytes(), []byte(">"))
	page := fmt.Appendf(nil, "%s%s>\n<requestId>%s</requestId>%s\n", xml.Header, root, h.requestID(), rest)
	if falsify != nil {
		page = falsify(page)
	}
	w.Header().Set("Content-Type", mediaType)
	httpreply.Send(w, r, page)
}

// refuse replies with an error.
func (h *handler) refuse(w http.ResponseWriter, err error) {
	e := (*vpc.Error)(nil)
	if !errors.As(err, &e) {
		e = &vpc.Error{Code: "InternalError", Status: http.StatusInternalServerError, Message: err.Error()}
	}
	b, err := refusal(e, h.requestID())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(e.Status)
	_, _ = w.Write(b)
}

// refusal is an error in XML.
func refusal(e *vpc.Error, requestID string) ([]byte, error) {
	type item struct{ Code, Message string }
	b, err := xml.Marshal(struct {
		XMLName   xml.Name `xml:"Response"`
		Errors    []item   `xml:"Errors>Error"`
		RequestID string
	}{Errors: []item{{e.Code, e.Message}}, RequestID: requestID})
	return append([]byte(xml.Header), b...), err
}

// Refusal is the API's reply to invalid HTTP requests, for httpreply.Refusing.
func Refusal(_ int, why string) (string, []byte) {
	b, err := refusal(vpc.Errorf("MalformedQueryString", "The request cannot be read: %s", why), noRequest)
	if err != nil {
		return "text/plain", []byte(why)
	}
	return mediaType, b
}

// action reads its parameters, calls ready, uses the cloud and returns the reply for XML.
type action func(*request) (any, error)

// Actions lists the names of all supported actions.
func Actions() []string { return slices.Sorted(maps.Keys(actions())) }

// actions are all supported actions.
func actions() map[string]action {
	return map[string]action{
		"AssignIpv6Addresses":                assignIPv6,
		"AssignPrivateIpAddresses":           assignIPv4,
		"AssociateTrunkInterface":            associateTrunk,
		"AttachNetworkInterface":             attachENI,
		"CreateNetworkInterface":             createENI,
		"CreateTags":                         createTags,
		"DeleteNetworkInterface":             deleteENI,
		"DeleteTags":                         deleteTags,
		"DescribeAvailabilityZones":          describeZones,
		"DescribeInstances":                  describeInstances,
		"DescribeInstanceStatus":             describeInstanceStatus,
		"DescribeInstanceTypes":              describeInstanceTypes,
		"DescribeNetworkInterfaceAttribute":  describeENIAttribute,
		"DescribeNetworkInterfaces":          describeENIs,
		"DescribeRouteTables":                describeRouteTables,
		"DescribeSecurityGroups":             describeGroups,
		"DescribeSubnets":                    describeSubnets,
		"DescribeTags":                       describeTags,
		"DescribeTrunkInterfaceAssociations": describeTrunkAssociations,
		"DescribeVpcs":                       describeVPCs,
		"DetachNetworkInterface":             detachENI,
		"DisassociateTrunkInterface":         disassociateTrunk,
		"ModifyNetworkInterfaceAttribute":    modifyENI,
		"RunInstances":                       runInstances,
		"StartInstances":                     startInstances,
		"StopInstances":                      stopInstances,
		"TerminateInstances":                 terminateInstances,
		"UnassignIpv6Addresses":              unassignIPv6,
		"UnassignPrivateIpAddresses":         unassignIPv4,
	}
}
