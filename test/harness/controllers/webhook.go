package controllers

import (
	"context"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/test/harness"
)

// ServeWebhookAt makes the Secret and the webhook configurations of a release of the chart. The API server asks at an
// address, in place of the operator's Service, until the end of the test.
func ServeWebhookAt(t *testing.T, r deploy.Release, address string) {
	t.Helper()
	objects, err := deploy.Render(r)
	harness.OK(t, err)
	here := func(c *admissionregistrationv1.WebhookClientConfig, paths ...string) {
		if !slices.Contains(paths, *c.Service.Path) || c.Service.Name != webhook.ServiceName {
			t.Errorf("the chart asks %+v", c)
		}
		*c = admissionregistrationv1.WebhookClientConfig{URL: new("https://" + address + *c.Service.Path)}
	}
	judges, err := deploy.Get[admissionregistrationv1.ValidatingWebhookConfiguration](objects, "ValidatingWebhookConfiguration", webhook.ConfigurationName)
	harness.OK(t, err)
	for i := range judges.Webhooks {
		here(&judges.Webhooks[i].ClientConfig, webhook.Path)
	}
	changes, err := deploy.Get[admissionregistrationv1.MutatingWebhookConfiguration](objects, "MutatingWebhookConfiguration", webhook.ConfigurationName)
	harness.OK(t, err)
	for i := range changes.Webhooks {
		here(&changes.Webhooks[i].ClientConfig, webhook.MutatePath, webhook.PolicyPath)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: webhook.SecretName}}
	for _, o := range []client.Object{secret, &judges, &changes} {
		Create(t, o)
		t.Cleanup(func() { harness.OK(t, harness.KubeClient(t).Delete(context.Background(), o)) })
	}
}
