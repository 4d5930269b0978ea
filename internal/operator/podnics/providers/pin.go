package providers

import (
	"fmt"

	"github.com/berthnet/berth/api/v1alpha1"
)

// pin is what the ports of a VPC are known to be of. A provider says of a port of another
// project, and of another cloud, that there is none: to delete it would seem to succeed.
type pin struct{ network, project string }

// pinIn is the pin that a status has.
func pinIn(s v1alpha1.VPCStatus) pin { return pin{s.NetworkID, s.ProjectID} }

// pin is that of the ports which are made after a look.
func (s sight) pin() pin { return pin{s.network.ID, s.project} }

// pinOf is the pin of a VPC, whose object may trail what was written.
func (s *state) pinOf(v *v1alpha1.VPC) pin {
	if s.pin != (pin{}) {
		return s.pin
	}
	return pinIn(v.Status)
}

// holds compares what was found with the pin of a VPC. Without PodNICs there are no
// ports, and anything goes.
func (p pin) holds(spec v1alpha1.VPCSpec, nics int, found sight) *problem {
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
