package deploy

import (
	_ "embed"
	"strings"
)

//go:embed iam/node.json
var nodePolicy string

//go:embed iam/operator.json
var operatorPolicy string

// NodePolicy is the IAM policy that the nodes' role needs in node mode, in a
// cluster of a name, which is the chart's clusterName.
func NodePolicy(cluster string) string { return inCluster(nodePolicy, cluster) }

// OperatorPolicy is the IAM policy that the operator's role needs in operator
// mode, in a cluster of a name. The nodes' role needs none there.
func OperatorPolicy(cluster string) string { return inCluster(operatorPolicy, cluster) }

func inCluster(policy, cluster string) string {
	return strings.ReplaceAll(policy, "CLUSTER_NAME", cluster)
}
