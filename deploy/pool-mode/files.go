// Package poolmode holds what a cluster with address pools is installed with,
// for programs that raise one.
package poolmode

import "embed"

// Roles are the service accounts of Berth's programs, what they may do, and the
// policies that narrow that (*.yaml).
//
//go:embed admission.yaml rbac.yaml rbac
var Roles embed.FS
