// Package podroles serves the roles of a vpc.Cloud to pods: AWS STS, which exchanges the token of a service account
// for credentials (IRSA; STS API Reference, "AssumeRoleWithWebIdentity"), and the EKS Pod Identity agent, the
// container credentials endpoint of a node (EKS User Guide, "Learn how EKS Pod Identity grants pods access to AWS
// services"). Both accept the tokens of Keys.ServiceAccountToken, for their own audience.
package podroles

import (
	"encoding/xml"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/httpreply"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

const (
	stsVersion = "2011-06-15"
	stsXMLNS   = "https://sts.amazonaws.com/doc/2011-06-15/"
	requestID  = "00000000-1ab0-4575-8001-000000000000"
	maxRequest = 64 << 10 // bytes
	maxSession = 64       // characters of a session name
)

// AgentPath is the path of the Pod Identity agent's credentials.
const AgentPath = "/v1/credentials"

// service returns the front of a service in which handle makes replies and refuse makes errors.
func service(c *vpc.Cloud, handle func(*http.Request, []byte) httpreply.Reply, refuse func(*vpc.Error) httpreply.Reply) *httpreply.Front {
	return httpreply.New(httpreply.Service{
		Clock: c.Clock(), MaxBody: maxRequest, MaxURL: maxRequest, Handle: handle,
		TooLong: refuse(vpc.Errorf("ValidationError", "The URL is too long")),
		TooLarge: func(*http.Request) httpreply.Reply {
			return refuse(&vpc.Error{Code: "RequestEntityTooLarge", Status: http.StatusRequestEntityTooLarge, Message: "The request is too large"})
		},
		Refuse: func(_ *http.Request, f httpreply.Fault) httpreply.Reply {
			return refuse(&vpc.Error{Code: f.Type, Status: f.Status, Message: f.Message})
		},
	})
}

// STS serves the one action of AWS STS that needs no signature.
func STS(c *vpc.Cloud) *httpreply.Front {
	return service(c, func(_ *http.Request, body []byte) httpreply.Reply {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return stsError(vpc.Errorf("MalformedQueryString", "The request is not a form post."))
		}
		return assume(c, form)
	}, stsError)
}

// assumed is the reply of AssumeRoleWithWebIdentity.
type assumed struct {
	XMLName xml.Name `xml:"AssumeRoleWithWebIdentityResponse"`
	NS      string   `xml:"xmlns,attr"`
	Result  struct {
		Credentials struct{ AccessKeyId, SecretAccessKey, SessionToken, Expiration string } //nolint:revive // the names of the elements
		User        struct {
			Arn string
		} `xml:"AssumedRoleUser"`
		Audience string
	} `xml:"AssumeRoleWithWebIdentityResult"`
	RequestID string `xml:"ResponseMetadata>RequestId"`
}

func assume(c *vpc.Cloud, form url.Values) httpreply.Reply {
	session := form.Get("RoleSessionName")
	role, ok := strings.CutPrefix(form.Get("RoleArn"), "arn:aws:iam::"+c.Account()+":role/")
	switch {
	case form.Get("Version") != stsVersion || form.Get("Action") != "AssumeRoleWithWebIdentity":
		return stsError(vpc.Errorf("InvalidAction", "Could not find operation %s for version %s", form.Get("Action"), form.Get("Version")))
	case len(session) < 2 || len(session) > maxSession:
		return stsError(vpc.Errorf("ValidationError", "roleSessionName: expected 2 to %d characters", maxSession))
	case !ok || role == "":
		return stsError(&vpc.Error{Code: "AccessDenied", Status: http.StatusForbidden, Message: "Not authorized to perform sts:AssumeRoleWithWebIdentity"})
	}
	k, failure := c.Keys.AssumeRole(role, form.Get("WebIdentityToken"), vpc.STSAudience, session)
	if failure != nil {
		return stsError(failure)
	}
	out := assumed{NS: stsXMLNS, RequestID: requestID}
	out.Result.Credentials.AccessKeyId, out.Result.Credentials.SecretAccessKey = k.ID, k.Secret
	out.Result.Credentials.SessionToken, out.Result.Credentials.Expiration = k.Token, k.Expires.UTC().Format(time.RFC3339)
	out.Result.User.Arn, out.Result.Audience = k.Principal.ARN, vpc.STSAudience
	return xmlReply(http.StatusOK, out)
}

func stsError(e *vpc.Error) httpreply.Reply {
	kind := "Sender"
	if e.Status >= http.StatusInternalServerError {
		kind = "Receiver"
	}
	type failure struct{ Type, Code, Message string }
	return xmlReply(e.Status, struct {
		XMLName   xml.Name `xml:"ErrorResponse"`
		NS        string   `xml:"xmlns,attr"`
		Error     failure
		RequestID string `xml:"RequestId"`
	}{NS: stsXMLNS, Error: failure{kind, e.Code, e.Message}, RequestID: requestID})
}

func xmlReply(status int, body any) httpreply.Reply {
	b, err := xml.Marshal(body)
	if err != nil {
		return httpreply.Reply{Status: http.StatusInternalServerError, Body: []byte(err.Error())}
	}
	return httpreply.Reply{Status: status, Header: map[string]string{"Content-Type": "text/xml"}, Body: append([]byte(xml.Header), b...)}
}

// Agent serves the EKS Pod Identity agent of an instance at AgentPath.
func Agent(c *vpc.Cloud, instanceID string) *httpreply.Front {
	return service(c, func(r *http.Request, _ []byte) httpreply.Reply {
		if r.URL.Path != AgentPath || r.Method != http.MethodGet {
			return agentError(&vpc.Error{Code: "NotFound", Status: http.StatusNotFound, Message: "no such path"})
		}
		k, failure := c.Keys.AssumeRole("", r.Header.Get("Authorization"), vpc.PodIdentityAudience, "eks-lab-"+instanceID)
		if failure != nil {
			return agentError(failure)
		}
		return httpreply.JSON(http.StatusOK, map[string]string{
			"AccessKeyId": k.ID, "SecretAccessKey": k.Secret, "Token": k.Token, "AccountId": c.Account(),
			"Expiration": k.Expires.UTC().Format(time.RFC3339),
		})
	}, agentError)
}

// agentError is an error of the agent: one line of text.
func agentError(e *vpc.Error) httpreply.Reply {
	return httpreply.Reply{
		Status: e.Status, Header: map[string]string{"Content-Type": "text/plain"},
		Body: []byte("[" + requestID + "]: (" + e.Code + "): " + e.Message + ", fault: client\n"),
	}
}
