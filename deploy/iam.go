package deploy

import (
	_ "embed"
	"strings"
)

//go:embed iam/node.json
var nodePolicy string

//go:embed iam/operator.json
var operatorPolicy string

// NodePolicy returns the IAM policy that the nodes' role needs in node mode, for the chart's
// clusterName.
func NodePolicy(cluster string) string { return inCluster(nodePolicy, cluster) }

// OperatorPolicy returns the IAM policy that the operator's role needs in operator mode, for the
// chart's clusterName. The nodes' role needs none there.
func OperatorPolicy(cluster string) string { return inCluster(operatorPolicy, cluster) }

func inCluster(policy, cluster string) string {
	return strings.ReplaceAll(policy, "CLUSTER_NAME", cluster)
}
