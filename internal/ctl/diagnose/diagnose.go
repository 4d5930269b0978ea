package diagnose

// Pod diagnoses a pod. The first check that applies determines the result: first the
// checks of the pod itself, then those of its node, then those of what the node depends on.
func Pod(f Facts) Diagnosis {
	steps := []func(Facts) *Diagnosis{finished, hostNetwork, notScheduled}
	if len(addressesOf(f)) > 0 {
		steps = append(steps, func(f Facts) *Diagnosis { return besides(f, hasAddress(f)) })
	} else {
		steps = append(steps, attached, ending, nodeGone, noDaemon, daemonNotReady, nics, egressNamed, refused,
			operatorMode, poolMode, waiting, nodeNotReady)
	}
	for _, step := range steps {
		if d := step(f); d != nil {
			return *d
		}
	}
	return *notAsked(f)
}
