package webhook

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/nicrequest"
)

// branchesOf returns how many branch interfaces a pod will have in the VPC that it names, which is nil if it does not exist: one for each NIC,
// including users' ports and PodNICs. A pod whose NICs cannot be parsed gets none, as it is rejected.
func branchesOf(p nicrequest.Pod, v *v1alpha1.VPC, first nicrequest.First) int {
	if v == nil || v.Spec.Provider != v1alpha1.ProviderEC2 {
		return 0
	}
	nics, errs := p.NICs(first, 0)
	if len(errs) > 0 {
		return 0
	}
	return len(nics)
}

// asks returns how many branch interfaces a pod already requests: its author, or an earlier call of the webhook, may have set that. Like the
// scheduler, it takes the maximum of together, the sum of containers and sidecars (restartable init containers), and of what any other init
// container requests together with the sidecars before it.
func asks(p *corev1.Pod) (n, together int64) {
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			together += asksOf(&c)
		} else {
			n = max(n, together+asksOf(&c))
		}
	}
	for i := range p.Spec.Containers {
		together += asksOf(&p.Spec.Containers[i])
	}
	return max(n, together), together
}

func asksOf(c *corev1.Container) int64 {
	requested, limited := c.Resources.Requests[v1alpha1.ResourceBranches], c.Resources.Limits[v1alpha1.ResourceBranches]
	return max(requested.Value(), limited.Value())
}

// lacks returns how many branch interfaces a pod's first container must request so that the pod requests as many as it will have, or 0 if it
// already does.
func lacks(p *corev1.Pod, branches int) int64 {
	n, together := asks(p)
	if n >= int64(branches) { // even if both are 0
		return 0
	}
	first := int64(branches) - together
	if len(p.Spec.Containers) > 0 {
		first += asksOf(&p.Spec.Containers[0])
	}
	return first
}

// edited returns the JSON of a pod after some changes. Everything else stays as it is, including fields that this program does not know.
func edited(pod []byte, changes ...func(map[string]any) error) ([]byte, error) {
	u := map[string]any{}
	if err := json.Unmarshal(pod, &u); err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	for _, change := range changes {
		if err := change(u); err != nil {
			return nil, err
		}
	}
	out, err := json.Marshal(u)
	if err != nil {
		return nil, fmt.Errorf("write the pod: %w", err)
	}
	return out, nil
}

// request sets the branch interfaces that a pod's first container requests, as both requests and limits, which must be equal for extended
// resources.
func request(branches int64) func(map[string]any) error {
	return func(pod map[string]any) error {
		containers, _, err := unstructured.NestedFieldNoCopy(pod, "spec", "containers")
		if err != nil {
			return fmt.Errorf("read the pod's containers: %w", err)
		}
		list, ok := containers.([]any)
		if !ok || len(list) == 0 {
			return errors.New("the pod has no containers")
		}
		first, ok := list[0].(map[string]any)
		if !ok {
			return errors.New("the pod's first container is not an object")
		}
		for _, kind := range []string{"requests", "limits"} {
			if err := unstructured.SetNestedField(first, strconv.FormatInt(branches, 10), "resources", kind, v1alpha1.ResourceBranches); err != nil {
				return fmt.Errorf("write the resources of the pod's first container: %w", err)
			}
		}
		return nil
	}
}

// annotate sets annotations of a pod.
func annotate(values map[string]string) func(map[string]any) error {
	return func(pod map[string]any) error {
		for key, value := range values {
			if err := unstructured.SetNestedField(pod, value, "metadata", "annotations", key); err != nil {
				return fmt.Errorf("write the pod's annotation %s: %w", key, err)
			}
		}
		return nil
	}
}
