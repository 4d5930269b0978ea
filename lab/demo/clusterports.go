package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
)

// portClusterArgs are operator arguments that shorten the demo.
var portClusterArgs = []string{"--listing-interval=2s", "--unplug-grace=5s"}

var inClusters = []lab.Mode{lab.NodeMode, lab.OperatorMode, lab.PoolMode, lab.PortMode}

// pod reads a pod, and its PodNICs by interface.
func (s *Cluster) pod(ctx context.Context, name string) (*corev1.Pod, map[string]v1alpha1.PodNIC) {
	p := &corev1.Pod{}
	check(s.lab.Kube.Client.Get(ctx, client.ObjectKey{Namespace: inDefault, Name: name}, p))
	nics := map[string]v1alpha1.PodNIC{}
	for _, n := range must(s.lab.Kube.PodNICs(ctx)) {
		if n.Status.Pod != nil && n.Status.Pod.UID == string(p.UID) {
			nics[n.Status.Interface] = n
		}
	}
	return p, nics
}

// addressOf returns the first address of a PodNIC.
func addressOf(n v1alpha1.PodNIC) string {
	if len(n.Status.Addresses) == 0 {
		fail("PodNIC %s has no address", n.Name)
	}
	address, _, _ := strings.Cut(n.Status.Addresses[0].CIDR, "/")
	return address
}

// podsWithNICs has the requested NICs by pod name.
const podsWithNICs = `
{{range $name, $nics := .Pods}}
apiVersion: v1
kind: Pod
metadata:
  name: {{$name}}
  annotations: {berth.dev/vpc: {{$.VPC}}{{with $nics}}, berth.dev/nics: {{printf "%q" .}}{{end}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - {name: web, image: {{$.Image}}, imagePullPolicy: Never, args: [netexec, --http-port={{$.Port}}]}
---
{{end}}`

// clusterSamples creates the sample pods with kubectl, checks their interfaces from inside, and calls those whose
// group allows it.
func clusterSamples(ctx context.Context, st *stage) string {
	s, samples, nics := st.cluster, st.ports.samples(ctx, false), map[string]string{}
	for _, p := range samples {
		nics[p.name] = p.nics
	}
	began := time.Now()
	must(s.apply(ctx, podsWithNICs, map[string]any{"Pods": nics, "VPC": s.lab.VPCs[0].Name, "Image": Agnhost, "Port": WebPort}))
	s.kubectl(ctx, "wait", "--for=condition=Ready", "pod/pod1", "pod/pod2", "pod/pod3", "pod/pod4", "pod/pod5", "--timeout=120s")
	took := since(began)
	for _, p := range samples {
		_, nics := s.pod(ctx, p.name)
		if len(nics) != len(p.have) {
			fail("pod %s has %d PodNICs, want %d", p.name, len(nics), len(p.have))
		}
		for i, want := range p.have {
			link := fmt.Sprintf("eth%d", i)
			inside, nic := s.kubectl(ctx, "exec", p.name, "--", "ip", "-o", "addr", "show", "dev", link), nics[link]
			if len(nic.Status.Addresses) == 0 || !strings.HasPrefix(nic.Status.Addresses[0].CIDR, want) || !strings.Contains(inside, "inet "+nic.Status.Addresses[0].CIDR+" ") {
				fail("%s of pod %s has %v by its PodNIC, want %q, and inside:\n%s", link, p.name, nic.Status.Addresses, want, inside)
			}
		}
		if p.name == "pod5" {
			continue // the group of its first interface allows nothing
		}
		if name := s.sh(ctx, "curl -sf -m 5 --retry 3 --retry-all-errors "+hostname(addressOf(nics["eth0"]))); name != p.name {
			fail("a request to %s of pod %s reached %q", addressOf(nics["eth0"]), p.name, name)
		}
	}
	s.shut(ctx, "192.168.0.113")
	return fmt.Sprintf("5 pods with 6 NICs Ready after %s; a closed group keeps callers out", took)
}

// wrongPod requests the address of its subnet's gateway.
const wrongPod = `
apiVersion: v1
kind: Pod
metadata:
  name: wrong
  annotations:
    berth.dev/vpc: {{.}}
    berth.dev/nics: '[{subnet: subnet-1, ip: 192.168.0.1}]'
spec:
  containers: [{name: pause, image: ` + Agnhost + `, imagePullPolicy: Never}]
`

// refusedAtOnce creates a pod that the webhook rejects. The API server calls the webhook through its Service, and
// trusts the CA bundle that the operator writes.
func refusedAtOnce(ctx context.Context, st *stage) string {
	s := st.cluster
	bundle := s.kubectl(ctx, "get", "validatingwebhookconfiguration", "berth-ports", "--output=jsonpath={.webhooks[*].clientConfig.caBundle}")
	if len(strings.Fields(bundle)) != 2 {
		fail("want a bundle for each of 2 webhooks: %s", bundle)
	}
	out, err := s.apply(ctx, wrongPod, s.lab.VPCs[0].Name)
	const want = "metadata.annotations[berth.dev/nics][0].ip: 192.168.0.1 is the gateway of subnet subnet-1 (192.168.0.0/24)"
	if err == nil || !strings.Contains(out, want) {
		fail("kubectl apply printed %q, want an error with %q", out, want)
	}
	return "“192.168.0.1 is the gateway of subnet subnet-1”"
}

// policyOfLabels assigns a NIC to pods with the label role=vault.
const policyOfLabels = `
apiVersion: berth.dev/v1alpha1
kind: NICPolicy
metadata: {name: vault, namespace: default}
spec:
  podSelector: {matchLabels: {role: vault}}
  subnet: subnet-2
  securityGroups: [{{.Group}}]
`

// vaultDeployment has a pod without annotations.
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
        - {name: vault, image: ` + Agnhost + `, imagePullPolicy: Never, args: [netexec, --http-port=8080]}
`

// byPolicy creates a pod that gets a subnet and a closed group by its labels, and responds once the group allows
// callers.
func byPolicy(ctx context.Context, st *stage) string {
	s := st.cluster
	group := must(s.lab.Ports.AddGroup(ctx, "vault"))
	must(s.apply(ctx, policyOfLabels, map[string]string{"Group": group}))
	s.kubectl(ctx, "wait", "--for=condition=Ready", "nicpolicy/vault", "--timeout=60s")
	must(s.apply(ctx, vaultDeployment, nil))
	s.kubectl(ctx, "rollout", "status", "deployment/vault", "--timeout=120s")
	p, nics := s.pod(ctx, s.kubectl(ctx, "get", "pods", "--selector=role=vault", "--output=jsonpath={.items[0].metadata.name}"))
	nic := nics["eth0"]
	if len(nics) != 1 || !slices.Equal(nic.Spec.SecurityGroups, []string{group}) || len(nic.Status.Addresses) != 1 || !strings.HasPrefix(nic.Status.Addresses[0].CIDR, "192.168.1.") {
		fail("pod %s has the NICs %+v, want one in subnet-2 with group %s", p.Name, nics, group)
	}
	s.shut(ctx, addressOf(nic))
	check(s.lab.Ports.Allow(ctx, group, portcloud.Rule{Protocol: "tcp"}))
	s.sh(ctx, "curl -sf -m 5 --retry 5 --retry-all-errors "+hostname(addressOf(nic)))
	by := p.Annotations[v1alpha1.AnnotationNICPolicy]
	if by != "NICPolicy/vault" {
		fail("the annotation %s is %q", v1alpha1.AnnotationNICPolicy, by)
	}
	s.kubectl(ctx, "delete", "deployment/vault", "nicpolicy/vault", "--timeout=60s")
	return fmt.Sprintf("%s by %s: closed, and open once its group allows callers", addressOf(nic), by)
}

// database is a StatefulSet whose pod uses a user's PodNIC.
const database = `
apiVersion: berth.dev/v1alpha1
kind: PodNIC
metadata: {name: db-0, namespace: default}
spec:
  vpc: {{.}}
  addresses: [{subnet: subnet-1, ip: 192.168.0.150}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: default}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{port: 8080}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: default}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata:
      labels: {app: db}
      annotations: {berth.dev/vpc: {{.}}, berth.dev/nics: '[{nic: db-0}]'}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: db, image: ` + Agnhost + `, imagePullPolicy: Never, args: [netexec, --http-port=8080]}
`

// statefulSet moves the pod of a StatefulSet to another node.
func statefulSet(ctx context.Context, st *stage) string {
	s := st.cluster
	must(s.apply(ctx, database, s.lab.VPCs[0].Name))
	at := func() (*corev1.Pod, v1alpha1.PodNICStatus) {
		s.kubectl(ctx, "rollout", "status", "statefulset/db", "--timeout=120s")
		p, nics := s.pod(ctx, "db-0")
		nic := nics["eth0"]
		if p.Status.PodIP != "192.168.0.150" || nic.Name != "db-0" || nic.Status.NodeName != p.Spec.NodeName {
			fail("pod db-0 on %s has the address %s and the PodNIC %q on %q", p.Spec.NodeName, p.Status.PodIP, nic.Name, nic.Status.NodeName)
		}
		s.sh(ctx, "curl -sf -m 5 --retry 3 --retry-all-errors http://db-0.db:8080/hostname")
		return p, nic.Status
	}
	old, before := at()
	s.kubectl(ctx, "cordon", before.NodeName)
	err := attempt(func() {
		s.kubectl(ctx, "delete", "pod", "db-0")
		await(ctx, "another pod db-0", func() {
			if p, _ := s.pod(ctx, "db-0"); p.UID == old.UID {
				fail("the old pod still exists")
			}
		})
	})
	s.kubectl(ctx, "uncordon", before.NodeName)
	check(err)
	_, after := at()
	if after.NodeName == before.NodeName || after.PortID != before.PortID || after.MAC != before.MAC {
		fail("port %s with %s was on %s, and port %s with %s is on %s", before.PortID, before.MAC, before.NodeName, after.PortID, after.MAC, after.NodeName)
	}
	// Pods without a controller would block the drain.
	s.kubectl(ctx, "delete", "statefulset/db", "pod/pod1", "pod/pod2", "pod/pod3", "pod/pod4", "pod/pod5", "--timeout=60s")
	return fmt.Sprintf("192.168.0.150, port %.8s on %s, then on %s", after.PortID, before.NodeName, after.NodeName)
}
