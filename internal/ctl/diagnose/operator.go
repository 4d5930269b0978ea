package diagnose

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
)

// operatorMode diagnoses a node in operator mode that has no free address.
func operatorMode(f Facts) *Diagnosis {
	if f.mode() != OperatorMode || f.freeHere() {
		return nil
	}
	name := f.Pod.Spec.NodeName
	switch n := f.NodeNetwork; {
	case n.Absent():
		return trouble(NoNodeNetwork, fmt.Sprintf("NodeNetwork %s, by which the operator assigns addresses to the node, does not exist.", name),
			"berthd creates it with --auto-create-node-network; its log says why it cannot, such as a missing role or an instance of another node.", seeOperator)
	case n.Value == nil:
		return nil
	case otherInstance(f):
		return trouble(OtherInstance, fmt.Sprintf("NodeNetwork %s belongs to instance %s, but the node is instance %s.", name, n.Value.Spec.InstanceID, instanceOf(f.Node.Value.Spec.ProviderID)),
			"Delete the NodeNetwork, so that berthd creates it again. With --auto-create-node-network berthd replaces it itself.", seeOperator)
	}
	conditions := f.NodeNetwork.Value.Status.Conditions
	if c := is(conditions, v1alpha1.ConditionDegraded); c != nil {
		return trouble(Degraded, fmt.Sprintf("berth-operator gets no addresses for node %s (%s): %s", name, c.Reason, c.Message),
			"Fix what it names; the operator retries.", seeReasons)
	}
	if d := noOperator(f); d != nil {
		return d
	}
	if c := is(conditions, v1alpha1.ConditionAtCapacity); c != nil {
		return trouble(AtCapacity, fmt.Sprintf("Node %s has no free address and has reached its limit (%s): %s", name, c.Reason, c.Message),
			"Run fewer pods there (lower the kubelet's maxPods to what the instance type allows: berthctl max-pods), use a larger type or prefixes, or add subnets.", seeReasons)
	}
	return nil
}

// noOperator diagnoses that no operator is ready.
func noOperator(f Facts) *Diagnosis {
	if o := f.Operators.Value; o == nil || o.Ready > 0 {
		return nil
	}
	o := f.Operators.Value
	return trouble(NoOperator, fmt.Sprintf("Node %s has no free address, and none of %d berth-operator pods is ready to assign more.", f.Pod.Spec.NodeName, o.All),
		"Check the operator's pods and their logs (app.kubernetes.io/name=berth-operator).", seeOperator)
}

// mode returns the mode of the pod's node. If its daemon is not known, the NodeNetwork decides.
func (f Facts) mode() Mode {
	switch {
	case f.Daemon.Value != nil:
		return f.Daemon.Value.Mode
	case f.NodeNetwork.Value != nil:
		return OperatorMode
	}
	return NodeMode
}

// freeHere reports whether the node has a free address. If so, the pod does not wait for
// anything that the node depends on.
func (f Facts) freeHere() bool {
	doc := f.Document.Value
	if doc == nil {
		return false
	}
	if f.mode() != PoolMode {
		return doc.Totals.Available > 0
	}
	pool, _ := choose(f)
	for _, p := range doc.Pools {
		if p.Name == pool {
			return p.Free > 0
		}
	}
	return false
}

func is(list []metav1.Condition, kind string) *metav1.Condition {
	if c := meta.FindStatusCondition(list, kind); c != nil && c.Status == metav1.ConditionTrue {
		out := *c
		out.Message = cmp.Or(c.Message, "no details")
		return &out
	}
	return nil
}

func otherInstance(f Facts) bool {
	if f.Node.Value == nil {
		return false
	}
	id := instanceOf(f.Node.Value.Spec.ProviderID)
	return id != "" && id != f.NodeNetwork.Value.Spec.InstanceID
}

// instanceOf returns the instance in a provider ID such as aws:///eu-central-1a/i-0123456789abcdef0.
func instanceOf(providerID string) string {
	rest, ok := strings.CutPrefix(providerID, "aws://")
	if !ok {
		return ""
	}
	return rest[strings.LastIndex(rest, "/")+1:]
}
