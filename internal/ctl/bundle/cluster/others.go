package cluster

import (
	"encoding/json"
	"slices"
	"strings"
)

// fields are paths below an object that a bundle keeps, with dots between names. A path
// goes through lists, and keeps all that is below its last name.
type fields []string

// Objects that belong to other software may carry secrets under any name and in any form:
// only these fields of theirs, which matter to a node's network, are collected.
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

// below are the fields of what is at a path.
func (f fields) below(path string) fields {
	out := make(fields, len(f))
	for i, one := range f {
		out[i] = path + "." + one
	}
	return out
}

// of copies the fields of a value.
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
	return nil // expected more below it
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

// networkTypes is a CNI configuration with the types of its plugins alone; empty: it cannot be read.
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

// ownContainers are the names of Berth's containers. Users add others to its pods, and to
// those of gateways.
var ownContainers = []string{"berthd", "berth-operator", "egress"}

// withoutOthers has only those fields of others' containers and volumes that a bundle keeps,
// wherever they are in a value.
func withoutOthers(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = withoutOthers(v[i])
		}
	case map[string]any:
		for key, value := range v {
			list, _ := value.([]any) // in the schema of a definition these names are no lists
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
