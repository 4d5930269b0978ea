package kube

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Token returns a token of a service account, which it creates if missing. If pod is given, the token is bound to that pod
// and names its node. Without audiences the token is for the API server.
func (c *ControlPlane) Token(ctx context.Context, account types.NamespacedName, pod *corev1.Pod, audiences ...string) (string, error) {
	api, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return "", err
	}
	accounts := api.CoreV1().ServiceAccounts(account.Namespace)
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account.Name}}
	if _, err := accounts.Create(ctx, sa, metav1.CreateOptions{}); exists(err) != nil {
		return "", fmt.Errorf("create service account %s: %w", account, err)
	}
	seconds := int64(lifetime / time.Second) // not refreshed
	request := &authenticationv1.TokenRequest{}
	request.Spec.ExpirationSeconds, request.Spec.Audiences = &seconds, audiences
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		}
	}
	reply, err := accounts.CreateToken(ctx, account.Name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create a token for %s: %w", account, err)
	}
	return reply.Status.Token, nil
}

// NodeToken returns a token like that of a DaemonSet's pod on a node. It creates the account and that pod, named
// account-node, if missing. The node need not exist.
func (c *ControlPlane) NodeToken(ctx context.Context, account types.NamespacedName, node string, audiences ...string) (string, error) {
	api, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return "", err
	}
	// Create the account first: the pod would be rejected without it.
	if _, err := c.Token(ctx, account, nil); err != nil {
		return "", err
	}
	pods := api.CoreV1().Pods(account.Namespace)
	name := account.Name + "-" + node
	_, err = pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, ServiceAccountName: account.Name,
			Containers:  []corev1.Container{{Name: account.Name, Image: account.Name}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{})
	if exists(err) != nil {
		return "", fmt.Errorf("create pod %s/%s: %w", account.Namespace, name, err)
	}
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read pod %s/%s: %w", account.Namespace, name, err)
	}
	return c.Token(ctx, account, pod, audiences...)
}

// exists treats "already exists" as success.
func exists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
