package nodeenis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// makeTemplate makes a template for Nodes that have the label pool with a value.
func makeTemplate(t *testing.T, name, pool string, change func(*v1alpha1.NodeNetworkTemplateSpec)) *v1alpha1.NodeNetworkTemplate {
	t.Helper()
	o := &v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.NodeSelector.MatchLabels = map[string]v1alpha1.LabelValue{"pool": v1alpha1.LabelValue(pool)}
	change(&o.Spec)
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), o))
	return o
}

// label has node-1's Node have the label pool with a value.
func label(t *testing.T, pool string) {
	t.Helper()
	k := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"pool":%q}}}`, pool)
	harness.OK(t, harness.KubeClient(t).Patch(t.Context(), k, client.RawPatch("application/merge-patch+json", patch)))
}

// given waits until the fleet has such settings for node-1.
func (s *script) given(t *testing.T, what string, is func(eni.Settings) bool) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, what, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.settings["node-1"]; !is(got) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

// A template counts for nodes with its labels from when both are so until one is not, in
// place of what the object says, which stays as it is.
func TestTemplate(t *testing.T) {
	harness.KubeClean(t)
	create(t, "node-1", func(o *v1alpha1.NodeNetwork) {
		o.Spec.ENI.SubnetTags, o.Spec.ENI.PreAllocate = map[string]string{"for": "pods"}, new(int32(3))
	})
	s, n := play(t, Options{})
	own := func(got eni.Settings) bool {
		return got.SubnetTags["for"] == "pods" && len(got.SubnetIDs)+len(got.Groups) == 0 && !got.DrainOutdated
	}
	with := func(subnet string, drain bool) func(eni.Settings) bool {
		return func(got eni.Settings) bool {
			return slices.Equal(got.SubnetIDs, []string{subnet}) && len(got.SubnetTags) == 0 && slices.Equal(got.Groups, []string{"sg-0a"}) &&
				got.DrainOutdated == drain && got.Policy.PreAllocate == 3
		}
	}
	says := func(template, subnet string) func(*v1alpha1.NodeNetwork) error {
		return func(o *v1alpha1.NodeNetwork) error {
			e := o.Status.ENI
			if e.Template != template || (e.Settings == nil) != (template == "") || e.Settings != nil && (!slices.Equal(e.Settings.SubnetIDs, []string{subnet}) || *e.Settings.PreAllocate != 3) {
				return fmt.Errorf("template %q, settings %+v", e.Template, e.Settings)
			}
			if o.Spec.ENI.SubnetTags["for"] != "pods" || len(o.Spec.ENI.SubnetIDs) > 0 {
				return fmt.Errorf("the operator wrote spec.eni: %+v", o.Spec.ENI)
			}
			return nil
		}
	}
	publish(t, n, inventory([]string{"10.0.0.1"}))
	s.given(t, "the object's own", own)

	first := makeTemplate(t, "first", "a", func(o *v1alpha1.NodeNetworkTemplateSpec) {
		o.ENI.SubnetIDs, o.ENI.SecurityGroups = []string{"subnet-0a"}, []string{"sg-0a"}
	})
	makeTemplate(t, "other", "b", func(o *v1alpha1.NodeNetworkTemplateSpec) {
		o.ENI.SubnetIDs, o.ENI.SecurityGroups, o.OutdatedENIs = []string{"subnet-0b"}, []string{"sg-0a"}, v1alpha1.DrainOutdated
	})
	label(t, "a")
	s.given(t, "the template of its label", with("subnet-0a", false))
	until(t, "node-1", "the object names it", says("NodeNetworkTemplate/first", "subnet-0a"))

	first.Spec.ENI.SubnetIDs = []string{"subnet-0c"}
	harness.OK(t, harness.KubeClient(t).Update(t.Context(), first))
	s.given(t, "a change of the template", with("subnet-0c", false))
	until(t, "node-1", "the object shows it", says("NodeNetworkTemplate/first", "subnet-0c"))

	label(t, "b")
	s.given(t, "the template of the new label", with("subnet-0b", true))
	until(t, "node-1", "the object names that", says("NodeNetworkTemplate/other", "subnet-0b"))

	before := n
	s.end() // another operator goes on with it
	s, n = play(t, Options{})
	if n == before {
		t.Fatal("the same operator")
	}
	s.given(t, "the same for the next operator", with("subnet-0b", true))

	publish(t, n, inventory([]string{"10.0.0.1"}))
	label(t, "none")
	s.given(t, "the object's own again", own)
	until(t, "node-1", "the object names none", says("", ""))
}

// Without a template nothing else could go on: limits that the object has of an instance
// before it was made larger keep nobody from asking EC2.
func TestOldLimitsKeepNobodyWaiting(t *testing.T) {
	harness.KubeClean(t)
	o := create(t, "node-1", func(o *v1alpha1.NodeNetwork) { o.Spec.ENI.FirstInterfaceIndex = new(int32(3)) })
	o.Status.ENI.Limits = &v1alpha1.ENILimits{ENIs: 3, AddressesPerENI: 10}
	harness.OK(t, harness.KubeClient(t).Status().Update(t.Context(), o))
	s, _ := play(t, Options{})
	s.given(t, "what the object asks for", func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 3 })
}

// A template that a node cannot have is told of by its name, and nothing changes, also
// when another operator begins.
func TestTemplateThatMakesNoSense(t *testing.T) {
	s, n := setUp(t, Options{})
	inv := inventory([]string{"10.0.0.1"})
	inv.InstanceType, inv.Limits = "m5.large", cloud.Limits{MaxENIs: 3, IPv4PerENI: 10}
	publish(t, n, inv)
	label(t, "a")
	o := makeTemplate(t, "beyond", "a", func(o *v1alpha1.NodeNetworkTemplateSpec) { o.ENI.FirstInterfaceIndex = new(int32(2)) })
	s.given(t, "what the type allows", func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 2 })
	o.Spec.ENI.FirstInterfaceIndex = new(int32(3))
	harness.OK(t, harness.KubeClient(t).Update(t.Context(), o))
	until(t, "node-1", "it is told", degraded(reasonInvalidSpec))
	if got := get(t, "node-1"); got.Status.ENI.Template != "NodeNetworkTemplate/beyond" || *got.Status.ENI.Settings.FirstInterfaceIndex != 2 {
		t.Errorf("the object shows what does not count: %+v", got.Status.ENI)
	}
	for _, c := range get(t, "node-1").Status.Conditions {
		if c.Type == v1alpha1.ConditionDegraded && !strings.Contains(c.Message, "with NodeNetworkTemplate/beyond: spec.eni.firstInterfaceIndex is 3: expected at most 2") {
			t.Error(c.Message)
		}
	}
	counts := func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 2 }
	s.given(t, "what counted before", counts)
	s.end()
	s, n = play(t, Options{})
	s.given(t, "what counted before, for the next operator", counts)
	publish(t, n, inv)
	until(t, "node-1", "it is told still", degraded(reasonInvalidSpec))
	if got := get(t, "node-1").Status.ENI; got.Template != "NodeNetworkTemplate/beyond" || *got.Settings.FirstInterfaceIndex != 2 {
		t.Errorf("the object shows what does not count: %+v", got)
	}
	o.Spec.ENI.FirstInterfaceIndex = new(int32(1))
	harness.OK(t, harness.KubeClient(t).Update(t.Context(), o))
	s.given(t, "what is right again", func(got eni.Settings) bool { return got.Policy.FirstInterfaceIndex == 1 })
}
