// Package operatormode holds what operator mode is installed with, for programs
// that raise a cluster.
package operatormode

import "embed"

// Roles are the service accounts of Berth's programs, what they may do, and the
// policies that narrow that, with the list of what daemons may ask for (*.yaml).
//
//go:embed admission.yaml allowed.yaml rbac.yaml rbac
var Roles embed.FS

// Policy is what the operator's IAM role needs.
//
//go:embed iam-policy.json
var Policy []byte
