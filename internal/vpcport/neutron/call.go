package neutron

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// expected is the status of success (Networking API v2.0).
var expected = map[string]int{
	http.MethodGet: http.StatusOK, http.MethodPost: http.StatusCreated, http.MethodPut: http.StatusOK, http.MethodDelete: http.StatusNoContent,
}

// call makes a request and decodes the reply into to, unless that is nil. It ends with ctx or after
// Settings.Timeout.
func (p *Provider) call(ctx context.Context, r rest.Request, to any) error {
	ctx, cancel := context.WithTimeout(ctx, p.settings.Timeout)
	defer cancel()
	client, err := p.connect(ctx)
	if err != nil {
		return err
	}
	at := client.ServiceURL(r.Path)
	if len(r.Query) > 0 {
		at += "?" + r.Query.Encode()
	}
	o := &gophercloud.RequestOpts{JSONBody: r.Body, JSONResponse: to, OkCodes: []int{expected[r.Method]}}
	if r.Match != "" {
		o.MoreHeaders = map[string]string{"If-Match": r.Match}
	}
	resp, err := client.Request(ctx, r.Method, at, o)
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close() // read already
	}
	if err != nil {
		return p.conceal(failure(r.Op(), err, r), client.ProviderClient)
	}
	return nil
}

// byType are the classes of Neutron's exceptions (neutron-lib exceptions, neutron ipam/exceptions.py)
// that do not follow from the status.
var byType = map[string]vpcport.Class{
	"IpAddressGenerationFailure": vpcport.SubnetFull, "IpAddressGenerationFailureAllSubnets": vpcport.SubnetFull,
	"IpAddressGenerationFailureNoMatchingSubnet": vpcport.Invalid, "ExternalIpAddressExhausted": vpcport.SubnetFull,
	"IpAddressAlreadyAllocated": vpcport.AddressTaken, "IpAddressInUse": vpcport.AddressTaken,
	"MacAddressInUse": vpcport.MACTaken, "OverQuota": vpcport.OverQuota,
	"NetworkNotFound": vpcport.NetworkGone, "SubnetNotFound": vpcport.ReferenceGone, "SecurityGroupNotFound": vpcport.ReferenceGone,
	"PortNotFound": vpcport.PortGone, "HTTPNotFound": vpcport.PortGone, "RevisionNumberConstraintFailed": vpcport.Stale,
}

// failure is the error of a failed request.
func failure(op string, err error, of rest.Request) error {
	if own, ok := errors.AsType[*vpcport.Error](err); ok {
		return own
	}
	// Neutron refused the token and Keystone gave no other: the error of Keystone counts.
	if again, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok {
		return failure(opToken, again.ErrReauth, rest.Request{})
	}
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refusal(op, refused, of)
	}
	return rest.Unanswered(op, err)
}

// refusal is the error of an unsuccessful reply.
func refusal(op string, r gophercloud.ErrUnexpectedResponseCode, of rest.Request) error {
	kind, message := read(r.Body)
	out := rest.Refused(op, r.Actual, r.ResponseHeader, kind, message)
	out.Class = classify(op, r.Actual, kind, of, out.RetryAfter)
	out.About = of.Names.About(out.Class, message)
	return out
}

// classify is the class of a status and an exception.
func classify(op string, status int, kind string, of rest.Request, retryAfter time.Duration) vpcport.Class {
	class, known := rest.ByStatus(status, retryAfter)
	switch {
	case known:
		return class
	case status >= 500:
		return vpcport.Transient
	case status == http.StatusPreconditionFailed:
		return vpcport.Stale
	case op == opToken || status < 400:
		return vpcport.Invalid
	}
	class, known = byType[kind]
	switch {
	case class == vpcport.PortGone && !of.Port:
		return vpcport.Transient // a port that a page or a batch referred to
	case known:
		return class
	case status == http.StatusNotFound:
		return vpcport.Transient // from a proxy without a backend, not from Neutron
	case status == http.StatusConflict:
		return vpcport.Conflict
	default:
		return vpcport.Invalid
	}
}

// read decodes the error bodies of Neutron, Keystone and proxies.
func read(body []byte) (kind, message string) {
	var e struct {
		Neutron json.RawMessage `json:"NeutronError"`
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(body, &e) != nil {
		return "", rest.Text(body)
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
			return in.Type, in.Message
		case json.Unmarshal(raw, &text) == nil:
			return "", text
		}
	}
	return "", e.Message
}

// concealed replaces a secret in messages.
const concealed = "(concealed)"

// conceal removes the credentials and the token from an error: a server or a proxy may echo what it was
// sent. Client may be nil.
func (p *Provider) conceal(err error, client *gophercloud.ProviderClient) error {
	e, ok := errors.AsType[*vpcport.Error](err)
	if !ok {
		return err
	}
	var secrets []string
	if c := p.settings.Credentials; c != nil && c.Password != nil {
		secrets = append(secrets, c.Password.Password)
	}
	if c := p.settings.Credentials; c != nil && c.Application != nil {
		secrets = append(secrets, c.Application.Secret)
	}
	if client != nil {
		secrets = append(secrets, client.Token())
	}
	clean := *e
	for _, s := range secrets {
		if s == "" {
			continue
		}
		for _, text := range []*string{&clean.Message, &clean.Type, &clean.About} {
			*text = strings.ReplaceAll(*text, s, concealed)
		}
		if clean.Err != nil && strings.Contains(clean.Err.Error(), s) {
			clean.Err = errors.New(strings.ReplaceAll(clean.Err.Error(), s, concealed))
		}
	}
	return &clean
}
