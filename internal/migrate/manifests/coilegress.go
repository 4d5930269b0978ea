package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthnet/berth/api/v1alpha1"
)

// coilEgress is an Egress of Coil v2.
type coilEgress struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Destinations []string                   `json:"destinations"`
		Replicas     *int32                     `json:"replicas"`
		Strategy     *appsv1.DeploymentStrategy `json:"strategy"`
		Template     *struct {
			Metadata struct {
				Labels      map[string]v1alpha1.EgressPodLabel `json:"labels"`
				Annotations map[string]string                  `json:"annotations"`
			} `json:"metadata"`
			Spec json.RawMessage `json:"spec"`
		} `json:"template"`
		SessionAffinity       corev1.ServiceAffinity              `json:"sessionAffinity"`
		SessionAffinityConfig *corev1.SessionAffinityConfig       `json:"sessionAffinityConfig"`
		FouSourcePortAuto     bool                                `json:"fouSourcePortAuto"`
		PodDisruptionBudget   *v1alpha1.EgressPodDisruptionBudget `json:"podDisruptionBudget"`
	} `json:"spec"`
	Status json.RawMessage `json:"status"`
}

// coilEgresses adds an Egress of the same namespace and name for each. Tunnels of running clients lead to the Service's
// address, so it stays their remote end.
func coilEgresses(of []Object, _ *Input, out *Output) error {
	var errs []error
	for i := range of {
		o := &of[i]
		var e coilEgress
		err := o.Decode(&e)
		var made *v1alpha1.Egress
		if err == nil {
			if made, err = e.convert(); err != nil {
				err = fmt.Errorf("%s (%s): %w", o, o.Source, err)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out.Objects = append(out.Objects, made)
	}
	if len(of) > len(errs) {
		out.Comment("Do not delete the Service of an Egress of Coil: it has the address that tunnels of running clients lead to. Deleting the Egress deletes it")
		out.Comment("Coil lets pods of every namespace use every Egress, so spec.allowedNamespaces is \"*\": name the namespaces that need it")
	}
	return errors.Join(errs...)
}

func (e *coilEgress) convert() (*v1alpha1.Egress, error) {
	s := &e.Spec
	made := &v1alpha1.Egress{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Egress"},
		ObjectMeta: metav1.ObjectMeta{Name: e.Name, Namespace: e.Namespace},
		Spec: v1alpha1.EgressSpec{
			Replicas: s.Replicas, Strategy: s.Strategy, SessionAffinity: s.SessionAffinity, SessionAffinityConfig: s.SessionAffinityConfig,
			FouSourcePortAuto: s.FouSourcePortAuto, PodDisruptionBudget: s.PodDisruptionBudget,
			TunnelTo: v1alpha1.TunnelToService, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
		},
	}
	for i, d := range s.Destinations {
		p, err := netip.ParsePrefix(d)
		if err != nil {
			return nil, fmt.Errorf("spec.destinations[%d] is %q: expected a CIDR", i, d)
		}
		made.Spec.Destinations = append(made.Spec.Destinations, p.Masked().String())
	}
	if len(made.Spec.Destinations) == 0 {
		return nil, errors.New("spec.destinations is empty: expected at least one CIDR")
	}
	if t := s.Template; t != nil {
		made.Spec.Template = &v1alpha1.EgressPodTemplate{Metadata: v1alpha1.EgressPodMetadata{Labels: t.Metadata.Labels, Annotations: t.Metadata.Annotations}}
		if len(t.Spec) > 0 {
			made.Spec.Template.Spec = &runtime.RawExtension{Raw: t.Spec}
		}
	}
	return made, nil
}
