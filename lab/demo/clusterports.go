package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/poll"
)

// apply gives kubectl a manifest, which is a template of the first VPC.
func (s *stage) apply(ctx context.Context, manifest string, with any) (string, error) {
	t, err := template.New("manifest").Parse(manifest)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "manifest-*.yaml")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(t.Execute(f, with), f.Close()); err != nil {
		return "", fmt.Errorf("write %s: %w", filepath.Base(f.Name()), err)
	}
	return s.lab.Kubectl(ctx, "apply", "--filename="+f.Name())
}

// nicsOfPod are the PodNICs of a pod by interface.
func (s *stage) nicsOfPod(ctx context.Context, name string) (map[string]v1alpha1.PodNIC, error) {
	p := &corev1.Pod{}
	if err := s.lab.Kube.Client.Get(ctx, client.ObjectKey{Namespace: inDefault, Name: name}, p); err != nil {
		return nil, err
	}
	all, err := s.lab.Kube.PodNICs(ctx)
	nics := map[string]v1alpha1.PodNIC{}
	for _, n := range all {
		if n.Status.Pod != nil && n.Status.Pod.UID == string(p.UID) {
			nics[n.Status.Interface] = n
		}
	}
	return nics, err
}

// fivePods are the kinds of pods with NICs.
const fivePods = `
{{range .Pods}}
apiVersion: v1
kind: Pod
metadata:
  name: {{.Name}}
  annotations:
    berth.dev/vpc: {{$.VPC}}
    {{with .NICs}}berth.dev/nics: |
{{.}}{{end}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - {name: web, image: {{$.Image}}, imagePullPolicy: Never, args: [netexec, --http-port={{$.Port}}]}
---
{{end}}`

// usersPorts is what the names of the ports that a user made begin with.
const usersPorts = "users-port-"

type samplePod struct {
	Name, NICs string
	have       map[string]string // addresses by interface; an empty one is any
}

// clusterSamples makes the five pods by kubectl, looks at their interfaces from inside, and
// asks each whose group lets anybody in.
func clusterSamples(ctx context.Context, s *stage) (string, error) {
	v := s.lab.VPCs[0]
	firewall, err := s.lab.Ports.AddGroup(ctx, "cluster-firewall")
	if err != nil {
		return "", err
	}
	ids := map[string]string{}
	for _, ip := range []string{"192.168.0.140", "192.168.0.141"} {
		p, err := s.lab.Ports.AddPort(ctx, portcloud.Port{
			Name: usersPorts + ip, Network: v.Network.ID, Groups: []string{v.Open}, Tags: s.lab.TagsFor(inDefault),
			Addresses: []portcloud.Address{{Subnet: v.Network.Subnet("subnet-1").ID, IP: netip.MustParseAddr(ip)}},
		})
		if err != nil {
			return "", err
		}
		ids[ip] = p.ID
	}
	pods := []samplePod{
		{"pod1", "", map[string]string{"eth0": ""}},
		{"pod2", "      - subnet: subnet-2", map[string]string{"eth0": "192.168.1."}},
		{"pod3", "      - subnet: subnet-1\n        ip: 192.168.0.112", map[string]string{"eth0": "192.168.0.112/24"}},
		{"pod4", "      - portID: " + ids["192.168.0.140"], map[string]string{"eth0": "192.168.0.140/24"}},
		{
			"pod5", "      - subnet: subnet-1\n        ip: 192.168.0.113\n        securityGroup: " + firewall + "\n      - portID: " + ids["192.168.0.141"],
			map[string]string{"eth0": "192.168.0.113/24", "eth1": "192.168.0.141/24"},
		},
	}
	began := time.Now()
	if _, err := s.apply(ctx, fivePods, map[string]any{"Pods": pods, "VPC": v.Name, "Image": agnhost, "Port": webPort}); err != nil {
		return "", err
	}
	if _, err := s.lab.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/pod1", "pod/pod2", "pod/pod3", "pod/pod4", "pod/pod5", "--timeout=120s"); err != nil {
		return "", err
	}
	took := time.Since(began)
	for _, p := range pods {
		if err := s.looksAsAsked(ctx, p); err != nil {
			return "", fmt.Errorf("pod %s: %w", p.Name, err)
		}
	}
	if _, err := s.exec(ctx, "curl -s -m 2 http://192.168.0.113:8080/hostname"); err == nil {
		return "", errors.New("192.168.0.113 answers, whose group lets nothing in")
	}
	return fmt.Sprintf("5 pods with 6 NICs Ready after %.1f s; a shut group keeps callers out", took.Seconds()), nil
}

// looksAsAsked compares a pod's interfaces with what was asked for and with its PodNICs.
func (s *stage) looksAsAsked(ctx context.Context, p samplePod) error {
	nics, err := s.nicsOfPod(ctx, p.Name)
	if err != nil {
		return err
	}
	if len(nics) != len(p.have) {
		return fmt.Errorf("it has %d PodNICs, want %d", len(nics), len(p.have))
	}
	for link, want := range p.have {
		inside, err := s.lab.Kubectl(ctx, "exec", p.Name, "--", "ip", "-o", "addr", "show", "dev", link)
		if err != nil {
			return err
		}
		nic := nics[link]
		if len(nic.Status.Addresses) == 0 || !strings.HasPrefix(nic.Status.Addresses[0].CIDR, want) || !strings.Contains(inside, "inet "+nic.Status.Addresses[0].CIDR+" ") {
			return fmt.Errorf("%s has %v by its PodNIC, want %q, and inside:\n%s", link, nic.Status.Addresses, want, inside)
		}
	}
	if p.Name == "pod5" {
		return nil // whose first interface is shut
	}
	address, _, _ := strings.Cut(nics["eth0"].Status.Addresses[0].CIDR, "/")
	name, err := s.exec(ctx, fmt.Sprintf("curl -sf -m 5 --retry 3 --retry-all-errors http://%s:%d/hostname", address, webPort))
	if err == nil && name != p.Name {
		err = fmt.Errorf("%s is answered by %q", address, name)
	}
	return err
}

// wrongPod asks for the address of its subnet's gateway.
const wrongPod = `
apiVersion: v1
kind: Pod
metadata:
  name: wrong
  annotations:
    berth.dev/vpc: {{.}}
    berth.dev/nics: '[{subnet: subnet-1, ip: 192.168.0.1}]'
spec:
  containers: [{name: pause, image: ` + agnhost + `, imagePullPolicy: Never}]
`

// refusedAtOnce has the webhook, which the API server reaches by its Service and trusts by the
// bundle that the operator keeps, refuse a pod.
func refusedAtOnce(ctx context.Context, s *stage) (string, error) {
	bundle, err := s.lab.Kubectl(ctx, "get", "validatingwebhookconfiguration", "berth-ports", "--output=jsonpath={.webhooks[*].clientConfig.caBundle}")
	if err != nil || len(strings.Fields(bundle)) != 2 {
		return "", fmt.Errorf("want a bundle for each of 2 webhooks: %w", cmpErr(err, bundle))
	}
	out, err := s.apply(ctx, wrongPod, s.lab.VPCs[0].Name)
	const want = "metadata.annotations[berth.dev/nics][0].ip: 192.168.0.1 is the gateway of subnet subnet-1 (192.168.0.0/24)"
	if err == nil || !strings.Contains(out, want) {
		return "", fmt.Errorf("kubectl apply said, want %q: %w", want, cmpErr(err, out))
	}
	return "“192.168.0.1 is the gateway of subnet subnet-1”", nil
}

// database is a StatefulSet whose pod has a NIC of the user's.
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
        - {name: db, image: ` + agnhost + `, imagePullPolicy: Never, args: [netexec, --http-port=8080]}
`

// statefulSet has the pod of a StatefulSet go to another node.
func statefulSet(ctx context.Context, s *stage) (string, error) {
	if _, err := s.apply(ctx, database, s.lab.VPCs[0].Name); err != nil {
		return "", err
	}
	at := func() (nic v1alpha1.PodNIC, uid string, err error) {
		if _, err := s.lab.Kubectl(ctx, "rollout", "status", "statefulset/db", "--timeout=120s"); err != nil {
			return nic, "", err
		}
		p := &corev1.Pod{}
		if err := s.lab.Kube.Client.Get(ctx, client.ObjectKey{Namespace: inDefault, Name: "db-0"}, p); err != nil {
			return nic, "", err
		}
		nics, err := s.nicsOfPod(ctx, "db-0")
		if nic = nics["eth0"]; err == nil && (p.Status.PodIP != "192.168.0.150" || nic.Name != "db-0" || nic.Status.NodeName != p.Spec.NodeName) {
			err = fmt.Errorf("pod db-0 on %s has the address %s and the PodNIC %q on %q", p.Spec.NodeName, p.Status.PodIP, nic.Name, nic.Status.NodeName)
		}
		if err == nil {
			_, err = s.exec(ctx, "curl -sf -m 5 --retry 3 --retry-all-errors http://db-0.db:8080/hostname")
		}
		return nic, string(p.UID), err
	}
	before, uid, err := at()
	if err != nil {
		return "", err
	}
	node := before.Status.NodeName
	if _, err := s.lab.Kubectl(ctx, "cordon", node); err != nil {
		return "", err
	}
	_, err = s.lab.Kubectl(ctx, "delete", "pod", "db-0")
	if err == nil {
		err = poll.Until(ctx, func() error {
			p := &corev1.Pod{}
			if err := s.lab.Kube.Client.Get(ctx, client.ObjectKey{Namespace: inDefault, Name: "db-0"}, p); err != nil || string(p.UID) == uid {
				return errors.Join(err, errors.New("db-0 is not made again"))
			}
			return nil
		})
	}
	if _, back := s.lab.Kubectl(ctx, "uncordon", node); errors.Join(err, back) != nil {
		return "", errors.Join(err, back)
	}
	after, _, err := at()
	if err != nil {
		return "", err
	}
	if after.Status.NodeName == node || after.Status.PortID != before.Status.PortID || after.Status.MAC != before.Status.MAC {
		return "", fmt.Errorf("port %s with %s was on %s, and port %s with %s is on %s", before.Status.PortID, before.Status.MAC, node, after.Status.PortID, after.Status.MAC, after.Status.NodeName)
	}
	return fmt.Sprintf("192.168.0.150, port %.8s on %s, then on %s", after.Status.PortID, node, after.Status.NodeName), nil
}

// remade deletes the port of a running pod in the cloud.
func remade(ctx context.Context, s *stage) (string, error) {
	nics, err := s.nicsOfPod(ctx, "pod3")
	if err != nil {
		return "", err
	}
	before := nics["eth0"].Status.PortID
	if err := s.lab.Ports.RemovePort(ctx, before); err != nil {
		return "", err
	}
	began := time.Now()
	var after string
	err = poll.Until(ctx, func() error {
		nics, err := s.nicsOfPod(ctx, "pod3")
		if after = nics["eth0"].Status.PortID; err != nil || after == "" || after == before {
			return errors.Join(err, fmt.Errorf("its port is %q", after))
		}
		_, err = s.exec(ctx, "curl -sf -m 2 http://192.168.0.112:8080/hostname")
		return err
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("port %.8s in place of %.8s; 192.168.0.112 answers again after %.1f s", after, before, time.Since(began).Seconds()), nil
}

// givenBack deletes the pods of the last proofs. The user's PodNIC and ports stay.
func givenBack(ctx context.Context, s *stage) (string, error) {
	users := map[string]bool{}
	all, err := s.lab.Ports.Ports(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range all {
		users[p.ID] = strings.HasPrefix(p.Name, usersPorts)
	}
	nics, err := s.lab.Kube.PodNICs(ctx)
	if err != nil {
		return "", err
	}
	was, owned := map[string]bool{}, map[string]bool{}
	for _, n := range nics {
		if n.Status.Pod != nil && strings.HasPrefix(n.Status.Pod.Name, "pod") {
			was[n.Status.PortID] = true
		}
		owned[n.Status.PortID] = n.Spec.Pod == nil
	}
	if _, err := s.lab.Kubectl(ctx, "delete", "statefulset/db", "pod/pod1", "pod/pod2", "pod/pod3", "pod/pod4", "pod/pod5", "--timeout=60s"); err != nil {
		return "", err
	}
	err = poll.Until(ctx, func() error {
		now, err := s.lab.Ports.Ports(ctx)
		if err != nil {
			return err
		}
		stay := 0
		for _, p := range now {
			switch {
			case users[p.ID] || owned[p.ID]:
				stay++
				if p.Host != "" {
					return fmt.Errorf("port %s is bound to %s", p.ID, p.Host)
				}
			case was[p.ID]:
				return fmt.Errorf("port %s is there", p.ID)
			}
		}
		if stay != 3 {
			return fmt.Errorf("%d of the user's ports are left, want 2 and that of PodNIC db-0", stay)
		}
		return nil
	})
	return fmt.Sprintf("%d ports deleted; 2 of the user's and that of PodNIC db-0 stay, bound to nothing", len(was)-2), err
}

// portClusterArgs are settings of operators under which the story is short.
var portClusterArgs = []string{"--listing-interval=2s", "--unplug-grace=5s"}

var inClusters = []lab.Mode{lab.NodeMode, lab.OperatorMode, lab.PoolMode, lab.PortMode}
