// Package ec2api serves a vpc.Cloud as the EC2 Query API: signed form posts in,
// XML out, with EC2's parameters, errors, filters and pages (Amazon EC2 API
// Reference, version 2016-11-15). Any AWS SDK or the aws command can use it
// through an endpoint URL.
//
// A parameter that an action of the lab does not know is refused with
// UnknownParameter, so that a client never believes it had an effect.
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

// apiVersion is the only version of the API that the lab speaks.
const apiVersion = "2016-11-15"

// mediaType is that of all replies.
const mediaType = "text/xml;charset=UTF-8"

// noRequest is the ID of a request that none was made of.
const noRequest = "00000000-1ab0-4ec2-8001-000000000000"

// maxBody is the largest request that is read, in bytes. The largest of the
// lab's actions, CreateTags with 1,000 resources and 50 tags, needs half of it.
const maxBody = 256 << 10

type handler struct {
	cloud   *vpc.Cloud
	actions map[string]action
	next    atomic.Uint64 // request number
}

// Handler serves the EC2 Query API of a cloud at every path.
func Handler(cloud *vpc.Cloud) http.Handler { return &handler{cloud: cloud, actions: actions()} }

// ServeHTTP answers one call: authenticate, admit (throttling, faults,
// permissions), run, reply.
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

// unread is the error for a request whose body could not be read.
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

// request is one authenticated call on its way through its action.
type request struct {
	*params
	cloud  *vpc.Cloud
	call   vpc.Call
	dryRun bool
}

// read parses and authenticates a call. Even when it fails, the returned
// request says as much of the call as is known.
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

// check judges what is common to all actions.
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

// ready ends the reading of parameters: it returns the first mistake, a
// parameter that is not known, or the outcome of a dry run.
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

// wait lets d pass by the cloud's clock, and reports whether it did before the
// lab was closed. A client that gives up meanwhile takes nothing back, as with EC2.
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

// requestID makes the ID that each reply carries.
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

// refuse answers with an error.
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

// refusal is an error as the API writes it.
func refusal(e *vpc.Error, requestID string) ([]byte, error) {
	type item struct{ Code, Message string }
	b, err := xml.Marshal(struct {
		XMLName   xml.Name `xml:"Response"`
		Errors    []item   `xml:"Errors>Error"`
		RequestID string
	}{Errors: []item{{e.Code, e.Message}}, RequestID: requestID})
	return append([]byte(xml.Header), b...), err
}

// Refusal is the API's answer to what is no HTTP request, for httpreply.Refusing.
func Refusal(_ int, why string) (string, []byte) {
	b, err := refusal(vpc.Errorf("MalformedQueryString", "The request cannot be read: %s", why), noRequest)
	if err != nil {
		return "text/plain", []byte(why)
	}
	return mediaType, b
}

// action reads its parameters, calls ready, and only then touches the cloud.
// It returns what to reply as XML.
type action func(*request) (any, error)

// Actions names all the actions that the lab knows.
func Actions() []string { return slices.Sorted(maps.Keys(actions())) }

// actions are all the actions that the lab knows.
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
