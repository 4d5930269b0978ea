// Package operatormode holds what operator mode is installed with, for programs
// that raise a cluster.
package operatormode

import (
	"embed"
	"strings"
)

// Roles are the service accounts of Berth's programs, what they may do, and the
// policies that narrow that, with the list of what daemons may ask for (*.yaml).
//
//go:embed admission.yaml allowed.yaml rbac.yaml rbac
var Roles embed.FS

//go:embed iam-policy.json
var policy string

// Policy is what the operator's IAM role needs in a cluster of a name, which is
// the operator's --cluster-name.
func Policy(cluster string) string { return strings.ReplaceAll(policy, "CLUSTER_NAME", cluster) }
