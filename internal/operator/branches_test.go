package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/test/harness"
)

// The whole for branch interfaces, under the roles and policies of the chart: a Node has as
// many as its type may have while its instance has a trunk, and pods ask for them.
func TestNodeHasBranches(t *testing.T) {
	c := newCluster(t)
	r := deploy.InMode(deploy.OperatorMode, "test")
	r.Values["ports"] = map[string]any{"enabled": true}
	c.useRelease(r)
	at := freeAddress(t)
	c.askWebhook(r, at)
	o := c.start("one", "--ipam=eni-operator,port", "--first-interface-is-port=false", "--webhook-address="+at)
	o.until(c.leads("one"))
	harness.OK(t, c.client.Create(t.Context(), &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderEC2, Network: "vpc-0a1b2c3d", AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}},
	}}))
	c.node("node-a", v1alpha1.ENISpec{Trunk: new(true)})
	c.node("node-b", v1alpha1.ENISpec{})
	branches := func(node, want string) func() error {
		return func() error {
			n := &corev1.Node{}
			if err := c.client.Get(t.Context(), client.ObjectKey{Name: node}, n); err != nil {
				return err
			}
			if q, has := n.Status.Capacity[v1alpha1.ResourceBranches]; has != (want != "") || has && q.String() != want {
				return fmt.Errorf("%s has capacity %v, want %q branch interfaces; trunk %+v", node, n.Status.Capacity, want, c.read(node).Status.ENI.Trunk)
			}
			return nil
		}
	}
	o.until(branches("node-a", "9"))
	o.until(c.has("node-b", 8))
	harness.OK(t, branches("node-b", "")())
	o.until(func() error {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
		pod.Namespace, pod.Name, pod.Annotations = "default", "web-0", map[string]string{v1alpha1.AnnotationVPC: "e"}
		if err := c.client.Create(t.Context(), pod, client.DryRunAll); err != nil {
			return err
		}
		if q := pod.Spec.Containers[0].Resources.Limits[v1alpha1.ResourceBranches]; q.String() != "1" {
			return errors.New("the pod does not ask for a branch interface")
		}
		return nil
	})
	unwanted := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"eni":{"trunk":false}}}`))
	harness.OK(t, c.client.Patch(t.Context(), c.read("node-a"), unwanted))
	o.until(branches("node-a", ""))
	o.logsNone("orbidden")
}

// askWebhook has the API server ask about pods at an address, as a release of the chart has
// it ask by the operator's Service.
func (c *cluster) askWebhook(r deploy.Release, address string) {
	c.t.Helper()
	objects, err := deploy.Render(r)
	harness.OK(c.t, err)
	changes, err := deploy.Get[admissionregistrationv1.MutatingWebhookConfiguration](objects, "MutatingWebhookConfiguration", webhook.ConfigurationName)
	harness.OK(c.t, err)
	judges, err := deploy.Get[admissionregistrationv1.ValidatingWebhookConfiguration](objects, "ValidatingWebhookConfiguration", webhook.ConfigurationName)
	harness.OK(c.t, err)
	here := func(c *admissionregistrationv1.WebhookClientConfig) {
		*c = admissionregistrationv1.WebhookClientConfig{URL: new("https://" + address + *c.Service.Path)}
	}
	for i := range changes.Webhooks {
		here(&changes.Webhooks[i].ClientConfig)
	}
	for i := range judges.Webhooks {
		here(&judges.Webhooks[i].ClientConfig)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: webhook.SecretName}}
	for _, o := range []client.Object{secret, &judges, &changes} {
		harness.OK(c.t, c.client.Create(c.t.Context(), o))
		c.t.Cleanup(func() { harness.OK(c.t, c.client.Delete(context.Background(), o)) })
	}
}

// The first interface of pods may be a branch where there are such, and it is no port anyway.
func TestFirstOf(t *testing.T) {
	for ipam, want := range map[string]bool{"eni-operator,port": true, "port": false, "pool,port": false, "eni-operator": false} {
		cfg := config.Operator{OperatorCluster: config.OperatorCluster{IPAM: strings.Split(ipam, ",")}}
		if first := firstOf(cfg); first.MayBePort != want || first.IsPort || first.Name != "eth0" {
			t.Errorf("%s: %+v", ipam, first)
		}
		cfg.FirstIsPort = true
		if first := firstOf(cfg); first.MayBePort || !first.IsPort {
			t.Errorf("%s, where it is a port: %+v", ipam, first)
		}
	}
}
