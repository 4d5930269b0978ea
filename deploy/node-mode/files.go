// Package nodemode holds what node mode is installed with, for programs that
// raise a cluster.
package nodemode

import (
	_ "embed"
	"strings"
)

//go:embed iam-policy.json
var policy string

// Policy is what the nodes' IAM role needs in a cluster of a name, which is
// berthd's --cluster-name.
func Policy(cluster string) string { return strings.ReplaceAll(policy, "CLUSTER_NAME", cluster) }
