package vpc

import (
	"fmt"

	"github.com/berthnet/berth/api/v1alpha1"
)

// pinned holds what was found against what the ports of a VPC are known to be of. A
// provider says of a port of another project, and of another cloud, that there is none:
// to delete it would seem to succeed. Without PodNICs there are no ports, and anything
// goes.
func pinned(spec v1alpha1.VPCSpec, status v1alpha1.VPCStatus, nics int, networkID, projectID string) *problem {
	switch {
	case nics == 0:
		return nil
	case status.NetworkID != "" && status.NetworkID != networkID:
		return &problem{ofNetwork, ReasonNetworkChanged, fmt.Sprintf(
			"spec.network %s now is the network %s, and %d PodNICs are of %s: nothing is asked for until it is that again, or they are gone", spec.Network, networkID, nics, status.NetworkID)}
	case status.ProjectID != "" && status.ProjectID != projectID:
		return &problem{ofCredentials, ReasonProjectChanged, fmt.Sprintf(
			"the credentials now are of project %s, and %d PodNICs were made with those of %s, whose ports others do not see: nothing is asked for until they are of that again, or the PodNICs are gone%s", projectID, nics, status.ProjectID, secretOf(spec))}
	}
	return nil
}
