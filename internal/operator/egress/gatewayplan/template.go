package gatewayplan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	sigsjson "sigs.k8s.io/json"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Problem is why an object of an Egress is missing or not as desired.
type Problem struct {
	Reason  string // for a condition
	Message string // for users, with what to do
}

// The template has the same path in an Egress as in a Deployment, so the API server's errors about the
// Deployment's fields apply to the Egress as well.
const (
	templatePath = "spec.template"
	podPath      = templatePath + ".spec"
)

// Names of parts of a gateway's pod.
const (
	containerName = "egress"
	portFoU       = "fou"
	portHealth    = "health"
	tokenVolume   = "berth-egress-token"
	// tokenMount is where client-go reads the token.
	tokenMount = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// defaultGrace is the grace period of a gateway in seconds, unless the template sets one.
const defaultGrace = 60

// endDelay is the minimum time in seconds that a gateway keeps serving after it was told to stop
// (berth-egress, --end-delay).
const endDelay = 10

// maxTemplate is the maximum size of a template's spec and annotations together in bytes.
const maxTemplate = 32 << 10

// tooLarge replaces the spec of a template that is too large.
var tooLarge = []byte(`"` + strings.Repeat(" ", maxTemplate) + `"`)

// Trim drops an oversized template from an Egress: the cache keeps all Egresses, and users may create
// objects as large as the API server accepts.
func Trim(e *v1alpha1.Egress) {
	t := e.Spec.Template
	if t == nil {
		return
	}
	size := 0
	if t.Spec != nil {
		size = len(t.Spec.Raw)
	}
	for key, value := range t.Metadata.Annotations {
		size += len(key) + len(value)
	}
	if size > maxTemplate {
		e.Spec.Template = &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: tooLarge}}
	}
}

// podSpec returns the pod spec of gateways: the template's, with Berth's requirements as a strategic
// merge patch.
func podSpec(e *v1alpha1.Egress, s Settings) (map[string]any, *Problem) {
	asked := []byte("{}")
	if t := e.Spec.Template; t != nil && t.Spec != nil && len(t.Spec.Raw) > 0 {
		asked = t.Spec.Raw
	}
	invalid := func(path, format string, args ...any) *Problem {
		return &Problem{v1alpha1.EgressInvalidTemplate, path + ": " + fmt.Sprintf(format, args...)}
	}
	if len(asked) > maxTemplate {
		return nil, invalid(templatePath, "is longer than %d KiB in spec and annotations: shorten it", maxTemplate>>10)
	}
	var typed corev1.PodSpec
	unknown, err := sigsjson.UnmarshalStrict(asked, &typed)
	if err != nil {
		return nil, invalid(podPath, "is not part of a PodSpec: %v", err)
	}
	if len(unknown) > 0 {
		return nil, invalid(podPath, "%v", strings.TrimPrefix(unknown[0].Error(), "json: "))
	}
	if field := refusedField(&typed); field != "" {
		return nil, invalid(podPath+"."+field, "gateways have a network, processes and IPC of their own: leave it out")
	}
	grace := int64(defaultGrace)
	if typed.TerminationGracePeriodSeconds != nil {
		grace = *typed.TerminationGracePeriodSeconds
	}
	needs := needed(e.Name, s, grace)
	if grace < endDelay { // a gateway must not wait longer than its grace period
		c := &needs.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: "BERTH_END_DELAY", Value: fmt.Sprintf("%ds", grace)})
	}
	if typed.SecurityContext == nil || typed.SecurityContext.SeccompProfile == nil {
		needs.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	}
	out, err := merge(asked, needs)
	if err != nil {
		return nil, invalid(podPath, "cannot be merged with what a gateway needs: %v", err)
	}
	return out, nil
}

// merge merges a PodSpec over another one, which is JSON. The former takes precedence.
func merge(asked []byte, needs *corev1.PodSpec) (map[string]any, error) {
	var base, patch strategicpatch.JSONMap
	needed, err := json.Marshal(needs)
	if err = errors.Join(err, json.Unmarshal(asked, &base), json.Unmarshal(needed, &patch)); err != nil {
		return nil, err
	}
	withoutBerths(base)
	out, err := strategicpatch.StrategicMergeMapPatch(base, patch, corev1.PodSpec{})
	if err != nil {
		return nil, err
	}
	withoutNulls(out)
	return out, nil
}

// withoutBerths removes the fields that Berth sets from the gateways' container, as they would otherwise
// be merged with Berth's. If that container is missing, it is appended, so that the others keep their
// indexes.
func withoutBerths(pod map[string]any) {
	containers, _ := pod["containers"].([]any)
	for _, c := range containers {
		if c, _ := c.(map[string]any); c["name"] == containerName {
			for _, field := range []string{"command", "args", "readinessProbe", "livenessProbe", "securityContext", "volumeMounts", "volumeDevices"} {
				delete(c, field)
			}
			return
		}
	}
	pod["containers"] = append(containers, map[string]any{"name": containerName})
}

// refusedField returns a set field of a PodSpec that gateways cannot have, or "".
func refusedField(p *corev1.PodSpec) string {
	switch {
	case p.HostNetwork:
		return "hostNetwork"
	case p.HostPID:
		return "hostPID"
	case p.HostIPC:
		return "hostIPC"
	}
	return ""
}

// needed returns Berth's part of the PodSpec.
func needed(egress string, s Settings, grace int64) *corev1.PodSpec {
	yes, no, root := true, false, int64(0)
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(portHealth), Scheme: corev1.URISchemeHTTP}},
			PeriodSeconds: period, TimeoutSeconds: 5, FailureThreshold: failures, SuccessThreshold: 1,
		}
	}
	hour := int64(3607) // as in the volume that the kubelet adds ("Projected Volumes")
	return &corev1.PodSpec{
		ServiceAccountName: egress, DeprecatedServiceAccount: egress, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		TerminationGracePeriodSeconds: &grace,
		// Only the gateway gets the token, not the other containers.
		Volumes: []corev1.Volume{{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &hour}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		}}}}},
		Containers: []corev1.Container{{
			Name: containerName, Image: s.Image, Command: []string{"/" + programName},
			Env: []corev1.EnvVar{
				{Name: "BERTH_EGRESS_NAME", Value: egress},
				field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), field("POD_UID", "metadata.uid"), field("POD_IPS", "status.podIPs"), field("HOST_IPS", "status.hostIPs"),
				{Name: "BERTH_FOU_PORT", Value: strconv.Itoa(int(s.Port))},
				{Name: "BERTH_METRICS_ADDRESS", Value: fmt.Sprintf(":%d", v1alpha1.EgressHealthPort)},
				{Name: "BERTH_GRACE_PERIOD", Value: fmt.Sprintf("%ds", grace)},
			},
			Ports: []corev1.ContainerPort{
				{Name: portFoU, ContainerPort: int32(s.Port), Protocol: corev1.ProtocolUDP},
				{Name: portHealth, ContainerPort: v1alpha1.EgressHealthPort, Protocol: corev1.ProtocolTCP},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: tokenVolume, MountPath: tokenMount, ReadOnly: true}},
			// An unready gateway must lose its tunnels immediately, but a working one must not be restarted
			// because its node is busy.
			ReadinessProbe: probe("/readyz", 1, 3),
			LivenessProbe:  probe("/livez", 10, 6),
			SecurityContext: &corev1.SecurityContext{
				Privileged: &no, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				RunAsUser: &root, RunAsGroup: &root, RunAsNonRoot: &no, // otherwise NET_ADMIN is not effective
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
			},
		}},
	}
}
