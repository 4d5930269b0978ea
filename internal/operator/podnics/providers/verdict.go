package providers

import (
	"crypto/tls"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
)

// Reasons of a VPC's conditions.
const (
	ReasonReady                = "Ready"
	ReasonAnswers              = "Answers"
	ReasonAccepted             = "Accepted"
	ReasonNotNeeded            = "NotNeeded" // there are no credentials
	ReasonFound                = "Found"
	ReasonNotTried             = "NotTried" // because of another condition
	ReasonProviderNotSupported = "ProviderNotSupported"
	ReasonInvalidEndpoint      = "InvalidEndpoint"
	ReasonCertificateRefused   = "CertificateRefused"
	ReasonNoAnswer             = "NoAnswer"
	ReasonProviderFailed       = "ProviderFailed"
	ReasonThrottled            = "Throttled"
	ReasonUnexpectedAnswer     = "UnexpectedAnswer"
	ReasonSecretNotFound       = "SecretNotFound"
	ReasonSecretUnreadable     = "SecretUnreadable"
	ReasonSecretIncomplete     = "SecretIncomplete"
	ReasonCredentialsRefused   = "CredentialsRefused"
	ReasonForbidden            = "Forbidden"
	ReasonProjectChanged       = "ProjectChanged"
	ReasonNetworkNotFound      = "NetworkNotFound"
	ReasonNetworkAmbiguous     = "NetworkAmbiguous"
	ReasonNetworkChanged       = "NetworkChanged"
	ReasonNoSubnet             = "NoSubnet"
	ReasonSubnetNotFound       = "SubnetNotFound"
	ReasonDeleting             = "Deleting"
)

// area is what a problem is about. While there is one, later areas are unknown.
type area int

const (
	ofEndpoint area = iota
	ofCredentials
	ofNetwork
	areas
)

// conditionOf has the type of the condition of each area.
var conditionOf = [areas]string{v1alpha1.ConditionReachable, v1alpha1.ConditionCredentialsAccepted, v1alpha1.ConditionNetworkFound}

// problem is why a VPC cannot be used.
type problem struct {
	area            area
	reason, message string
}

// verdict is one condition, without its type.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

// good are the verdicts of a VPC without problems.
func good(credentials bool) [areas]verdict {
	out := [areas]verdict{
		{metav1.ConditionTrue, ReasonAnswers, ""}, {metav1.ConditionTrue, ReasonAccepted, ""}, {metav1.ConditionTrue, ReasonFound, ""},
	}
	if !credentials {
		out[ofCredentials].reason = ReasonNotNeeded
	}
	return out
}

// verdicts are the conditions of a VPC with a problem, or without one. Areas before that of the problem are good, as
// the provider answered, unless it was not asked.
func verdicts(p *problem, credentials, asked bool) [areas]verdict {
	out := good(credentials)
	if p == nil {
		return out
	}
	out[p.area] = verdict{metav1.ConditionFalse, p.reason, p.message}
	for a := range out {
		if area(a) > p.area || area(a) < p.area && !asked {
			out[a] = verdict{metav1.ConditionUnknown, ReasonNotTried, ""}
		}
	}
	if p.area == ofEndpoint && p.reason == ReasonThrottled {
		out[p.area].status = metav1.ConditionTrue // it answers
	}
	return out
}

func problemOf(spec v1alpha1.VPCSpec, err error) *problem {
	text := err.Error()
	switch class := vpcport.ClassOf(err); class {
	case vpcport.Unauthorized:
		return &problem{ofCredentials, ReasonCredentialsRefused, text + secretOf(spec)}
	case vpcport.Forbidden:
		return &problem{ofCredentials, ReasonForbidden, text + secretOf(spec)}
	case vpcport.NetworkGone:
		return &problem{ofNetwork, ReasonNetworkNotFound, text + "; spec.network and the project of the credentials tell which there are"}
	case vpcport.Throttled:
		return &problem{ofEndpoint, ReasonThrottled, text}
	case vpcport.Invalid:
		if e, ok := errors.AsType[*vpcport.Error](err); ok && e.About == spec.Network {
			return &problem{ofNetwork, ReasonNetworkAmbiguous, text}
		}
		return &problem{ofEndpoint, ReasonInvalidEndpoint, text}
	case vpcport.Transient, vpcport.Unknown:
		return unreachable(err)
	default:
		return &problem{ofEndpoint, ReasonUnexpectedAnswer, text}
	}
}

// unreachable is the problem of a provider without a useful answer.
func unreachable(err error) *problem {
	p := &problem{ofEndpoint, ReasonNoAnswer, err.Error()}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		p.reason, p.message = ReasonCertificateRefused, p.message+" (spec.tls.caBundle says which certificates are trusted, spec.tls.serverName the name that they must have)"
	}
	if e, ok := errors.AsType[*vpcport.Error](err); ok && e.Status != 0 {
		p.reason = ReasonProviderFailed
	}
	return p
}

// secretOf is the part of a message that names the Secret with the credentials.
func secretOf(spec v1alpha1.VPCSpec) string {
	if spec.Credentials == nil {
		return "; spec.credentials is not set"
	}
	return fmt.Sprintf("; the credentials are in Secret %s", spec.Credentials.SecretName)
}

// lasting reports whether a problem ends the use of a VPC. Other problems may be over at the next call, to the
// provider or to the API server.
func (p *problem) lasting() bool {
	switch p.reason {
	case ReasonCertificateRefused, ReasonProviderNotSupported:
		return true
	case ReasonSecretUnreadable:
		return false
	}
	return p.area != ofEndpoint
}

// pin is the network and the project of a VPC's ports. A provider answers that a port of another project or
// cloud does not exist: deleting it would seem to succeed.
type pin struct{ network, project string }

// pinIn is the pin in a status.
func pinIn(s v1alpha1.VPCStatus) pin { return pin{s.NetworkID, s.ProjectID} }

// pin is the pin of ports that are created after a look.
func (s lookup) pin() pin { return pin{s.network.ID, s.project} }

// pinOf is the pin of a VPC, whose object in the cache may be stale.
func (s *state) pinOf(v *v1alpha1.VPC) pin {
	if s.pin != (pin{}) {
		return s.pin
	}
	return pinIn(v.Status)
}

// holds compares the result of a look with the pin of a VPC. Without PodNICs there are no ports, and any network
// will do.
func (p pin) holds(spec v1alpha1.VPCSpec, nics int, found lookup) *problem {
	switch is := found.pin(); {
	case nics == 0:
		return nil
	case p.network != "" && p.network != is.network:
		return &problem{ofNetwork, ReasonNetworkChanged, fmt.Sprintf(
			"spec.network %s now is the network %s, and %d PodNICs are of %s: nothing is asked for until it is that again, or they are gone", spec.Network, is.network, nics, p.network)}
	case p.project != "" && p.project != is.project:
		return &problem{ofCredentials, ReasonProjectChanged, fmt.Sprintf(
			"the credentials now are of project %s, and %d PodNICs were made with those of %s, whose ports others do not see: nothing is asked for until they are of that again, or the PodNICs are gone%s", is.project, nics, p.project, secretOf(spec))}
	}
	return nil
}
