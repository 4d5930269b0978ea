package deploy

import (
	_ "embed"
	"strings"
)

// Condition keys are those of the Service Authorization Reference ("Actions, resources, and condition keys for Amazon EC2").
// ec2:InstanceID is a key of the instance in AttachNetworkInterface, DetachNetworkInterface and ModifyNetworkInterfaceAttribute.
// ec2:SourceInstanceARN is in each request with credentials of an instance's role. A network interface has no key for the instance
// that it is attached to, so changes of its addresses depend on its tags.

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
