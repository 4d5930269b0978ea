package demo

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/portcloud"
)

// policyOfLabels gives pods with the label role=vault a NIC of their own.
const policyOfLabels = `
apiVersion: berth.dev/v1alpha1
kind: NICPolicy
metadata: {name: vault, namespace: default}
spec:
  podSelector: {matchLabels: {role: vault}}
  subnet: subnet-2
  securityGroups: [{{.Group}}]
`

// vaultDeployment is one of a pod that says nothing of NICs.
const vaultDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: vault, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {role: vault}}
  template:
    metadata: {labels: {role: vault}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: vault, image: ` + agnhost + `, imagePullPolicy: Never, args: [netexec, --http-port=8080]}
`

// byPolicy has a pod of a Deployment get a subnet and a shut group by its labels; it answers
// once its group lets callers in.
func byPolicy(ctx context.Context, s *stage) (string, error) {
	group, err := s.lab.Ports.AddGroup(ctx, "vault")
	if err != nil {
		return "", err
	}
	if _, err := s.apply(ctx, policyOfLabels, map[string]string{"Group": group}); err != nil {
		return "", err
	}
	if _, err := s.lab.Kubectl(ctx, "wait", "--for=condition=Ready", "nicpolicy/vault", "--timeout=60s"); err != nil {
		return "", err
	}
	if _, err := s.apply(ctx, vaultDeployment, nil); err != nil {
		return "", err
	}
	if _, err := s.lab.Kubectl(ctx, "rollout", "status", "deployment/vault", "--timeout=120s"); err != nil {
		return "", err
	}
	name, err := s.lab.Kubectl(ctx, "get", "pods", "--selector=role=vault", "--output=jsonpath={.items[0].metadata.name}")
	if err != nil {
		return "", err
	}
	nics, err := s.nicsOfPod(ctx, name)
	if err != nil {
		return "", err
	}
	nic := nics["eth0"]
	if len(nics) != 1 || !slices.Equal(nic.Spec.SecurityGroups, []string{group}) || len(nic.Status.Addresses) != 1 || !strings.HasPrefix(nic.Status.Addresses[0].CIDR, "192.168.1.") {
		return "", fmt.Errorf("pod %s has the NICs %+v, want one in subnet-2 with group %s", name, nics, group)
	}
	address, _, _ := strings.Cut(nic.Status.Addresses[0].CIDR, "/")
	ask := "http://" + net.JoinHostPort(address, strconv.Itoa(webPort)) + "/hostname"
	if _, err := s.exec(ctx, "curl -s -m 2 "+ask); err == nil {
		return "", fmt.Errorf("%s answers, whose group lets nothing in", address)
	}
	if err := s.lab.Ports.Allow(ctx, group, portcloud.Rule{Protocol: "tcp"}); err != nil {
		return "", err
	}
	if _, err := s.exec(ctx, "curl -sf -m 5 --retry 5 --retry-all-errors "+ask); err != nil {
		return "", err
	}
	by, err := s.lab.Kubectl(ctx, "get", "pod", name, `--output=jsonpath={.metadata.annotations.berth\.dev/nic-policy}`)
	if err != nil || by != "NICPolicy/vault" {
		return "", fmt.Errorf("the annotation %s: %w", v1alpha1.AnnotationNICPolicy, cmpErr(err, by))
	}
	_, err = s.lab.Kubectl(ctx, "delete", "deployment/vault", "nicpolicy/vault", "--timeout=60s")
	return fmt.Sprintf("%s by %s: shut, and open once its group lets callers in", address, by), err
}
