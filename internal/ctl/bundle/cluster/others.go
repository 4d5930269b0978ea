package cluster

import (
	"encoding/json"
	"slices"
	"strings"
)

// fields are the paths of an object's fields that a bundle keeps, with dots between names. A path
// descends into lists and keeps everything below its last name.
type fields []string

// Objects of other software may have secrets in any field. Only these fields, which concern
// the node's network, are collected.
var (
	ofAll  = fields{"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.creationTimestamp", "metadata.deletionTimestamp", "metadata.generation", "metadata.labels"}
	ofNode = fields{"spec.podCIDR", "spec.podCIDRs", "spec.providerID", "spec.taints", "spec.unschedulable",
		"status.addresses", "status.allocatable", "status.capacity", "status.conditions", "status.nodeInfo"}
	ofContainer = fields{"name", "image", "ports", "resources", "securityContext", "volumeMounts.name", "volumeMounts.mountPath", "volumeMounts.readOnly"}
	ofVolume    = fields{"name", "hostPath", "emptyDir", "projected", "downwardAPI", "configMap.name", "secret.secretName"}
	ofPod       = slices.Concat(fields{"affinity", "dnsPolicy", "hostIPC", "hostNetwork", "hostPID", "nodeSelector", "priorityClassName", "serviceAccountName", "tolerations"},
		ofContainer.below("containers"), ofContainer.below("initContainers"), ofVolume.below("volumes"))
	ofDaemonSet = slices.Concat(fields{"spec.selector", "spec.updateStrategy", "spec.template.metadata.labels", "status"}, ofPod.below("spec.template.spec"))
	ofWebhook   = fields{"name", "rules", "failurePolicy", "matchPolicy", "matchConditions", "namespaceSelector", "objectSelector", "timeoutSeconds",
		"sideEffects", "reinvocationPolicy", "clientConfig.service"}.below("webhooks")
	ofNetwork = fields{"cniVersion", "name", "type", "plugins.type", "plugins.ipam.type", "ipam.type"} // of a CNI configuration
)

// below returns the fields with a path prepended.
func (f fields) below(path string) fields {
	out := make(fields, len(f))
	for i, one := range f {
		out[i] = path + "." + one
	}
	return out
}

// of returns a copy of v that has only these fields.
func (f fields) of(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, one := range v {
			out[i] = f.of(one)
		}
		return out
	case map[string]any:
		return f.ofObject(v)
	}
	return nil // a scalar where an object was expected
}

func (f fields) ofObject(o map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range o {
		var deeper fields
		for _, path := range f {
			name, rest, more := strings.Cut(path, ".")
			switch {
			case name != key:
			case !more:
				out[key] = value
			default:
				deeper = append(deeper, rest)
			}
		}
		if _, whole := out[key]; !whole && deeper != nil {
			out[key] = deeper.of(value)
		}
	}
	return out
}

// networkTypes reduces a CNI configuration to the types of its plugins. It returns "" if it
// cannot be parsed.
func networkTypes(config string) string {
	var v any
	if json.Unmarshal([]byte(config), &v) != nil {
		return ""
	}
	out, err := json.Marshal(ofNetwork.of(v))
	if err != nil {
		return ""
	}
	return string(out)
}

// ownContainers are the names of Berth's containers. Users may add others to its pods.
var ownContainers = []string{"berthd", "berth-operator", "egress"}

// withoutOthers reduces other software's containers and volumes, anywhere in v, to the fields
// that a bundle keeps.
func withoutOthers(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = withoutOthers(v[i])
		}
	case map[string]any:
		for key, value := range v {
			list, _ := value.([]any) // in the schema of a CRD these names are not lists
			switch {
			case list != nil && slices.Contains([]string{"containers", "initContainers", "ephemeralContainers"}, key):
				for i, c := range list {
					m, _ := c.(map[string]any)
					if name, _ := m["name"].(string); !slices.Contains(ownContainers, name) {
						list[i] = ofContainer.of(c)
					}
				}
			case list != nil && key == "volumes":
				v[key] = ofVolume.of(value)
			default:
				v[key] = withoutOthers(value)
			}
		}
	}
	return v
}
