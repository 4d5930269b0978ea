package diagnose

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

func finished(f Facts) *Diagnosis {
	if p := f.Pod.Status.Phase; p != corev1.PodSucceeded && p != corev1.PodFailed {
		return nil
	}
	return fine(Finished, fmt.Sprintf("The pod has ended (%s), and its address is released.", f.Pod.Status.Phase))
}

func hostNetwork(f Facts) *Diagnosis {
	if !f.Pod.Spec.HostNetwork {
		return nil
	}
	return besides(f, fine(HostNetwork, "The pod is on the host's network: it has its node's address, and Berth does not manage it."))
}

func notScheduled(f Facts) *Diagnosis {
	if f.Pod.Spec.NodeName != "" {
		return nil
	}
	why := "the scheduler has given no reason"
	for _, c := range f.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Message != "" {
			why = c.Message
		}
	}
	return trouble(NotScheduled, "The pod is not scheduled yet: "+why,
		"Find out why the scheduler finds no node for it (kubectl describe pod). A pod gets its address from its node.", "")
}

func ending(f Facts) *Diagnosis {
	if f.Pod.DeletionTimestamp == nil {
		return nil
	}
	return fine(Ending, "The pod is being deleted and gets no address.")
}

func nodeGone(f Facts) *Diagnosis {
	if !f.Node.Absent() {
		return nil
	}
	return trouble(NodeGone, fmt.Sprintf("The pod is bound to node %s, which does not exist.", f.Pod.Spec.NodeName),
		"Delete the pod, so that its controller creates another elsewhere, or make the node register.", seeNode)
}

// startDaemon is what to do if no berthd pod runs on a node.
const startDaemon = "Find out why the DaemonSet has no pod there: check its node selector, tolerations and events (kubectl describe daemonset)."

func noDaemon(f Facts) *Diagnosis {
	if !f.Daemon.Absent() {
		return nil
	}
	return trouble(NoDaemon, fmt.Sprintf("No berthd pod runs on node %s, so its pods get no addresses.", f.Pod.Spec.NodeName),
		startDaemon, seeDaemon)
}

func daemonNotReady(f Facts) *Diagnosis {
	d := f.Daemon.Value
	if d == nil || d.Ready {
		return nil
	}
	return trouble(DaemonNotReady, fmt.Sprintf("berthd on node %s is not ready: %s", f.Pod.Spec.NodeName, cmp.Or(f.View.Unread, d.Why, "no reason given")),
		fmt.Sprintf("Check its log (kubectl logs %s) and `kubectl berth node %s`.", d.Pod, f.Pod.Spec.NodeName), seeNode)
}

func nodeNotReady(f Facts) *Diagnosis {
	if f.Node.Value == nil {
		return nil
	}
	for _, c := range f.Node.Value.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return trouble(NodeNotReady, fmt.Sprintf("Node %s is not ready (%s): %s", f.Node.Value.Name, c.Reason, cmp.Or(c.Message, "no reason given")),
				"Repair the node's kubelet: it starts no pod until it is ready.", seeNode)
		}
	}
	return nil
}
