package diagnose

import (
	"cmp"
	"fmt"
	"strings"
)

// policyReasons are the reasons of ADDs that wait for network policies, or failed without them.
var policyReasons = []string{"policies-unknown", "policies-not-in-force"}

// policyErrors are the prefixes of the plugin's errors about network policies.
var policyErrors = []string{"the pod's network policies are not known: ", "the pod's network policies are not in force: "}

// policiesBefore diagnoses a pod whose ADD waits for its network policies, or failed because they did not arrive in time.
func policiesBefore(f Facts) *Diagnosis {
	words := ""
	if f.View.Value != nil {
		for _, w := range f.View.Value.Waiting {
			for _, reason := range policyReasons {
				if w.Reason == reason {
					words = cmp.Or(w.Message, reason)
				}
			}
		}
	}
	if words == "" && !isWaiting(f) {
		said, _, _ := saidOfSandbox(f)
		for i, reason := range policyReasons {
			after, failed := strings.CutPrefix(said, policyErrors[i])
			if failed || strings.Contains(said, "["+reason+"]") {
				words = after
			}
		}
	}
	if words == "" {
		return nil
	}
	return trouble(NoPolicies, "The pod does not start before its network policies are in force: "+words,
		"Nothing, if it takes seconds. Otherwise check that a berth-operator pod is ready (kubectl berth status) and that its node reaches it (kubectl berth policies); the kubelet retries.", seePolicies)
}

// policiesOf diagnoses a running pod whose network policies are not in force.
func policiesOf(f Facts) *Diagnosis {
	doc := f.Policies.Value
	if doc == nil || !doc.Enabled {
		return nil
	}
	node, found := f.Pod.Spec.NodeName, false
	for _, a := range doc.Attachments {
		if a.Namespace != f.Pod.Namespace || a.Pod != f.Pod.Name {
			continue
		}
		switch found = true; {
		case !a.Known:
			return trouble(NoPolicies, fmt.Sprintf("berth-operator has not sent the pod's network policies to node %s.", node),
				"Check that the node is connected to berth-operator (kubectl berth policies).", seePolicies)
		case !a.InForce:
			return trouble(NoPolicies, fmt.Sprintf("The pod's network policies are not in force on node %s: %s", node, cmp.Or(doc.Failure, "they are being applied")),
				"Nothing, if it takes a moment. Otherwise look at the log of berthd: the kernel rejects what it applies.", seePolicies)
		}
	}
	if !found {
		return trouble(NoPolicies, fmt.Sprintf("Node %s enforces no network policies for the pod: berthd does not know it as a pod with policies.", node),
			"Delete the pod, so that its controller creates another.", seePolicies)
	}
	return nil
}
