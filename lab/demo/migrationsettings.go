package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate/manifests"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/node"
)

// Settings of the Amazon VPC CNI that change what a migration must do.
const (
	prefixDelegation = "ENABLE_PREFIX_DELEGATION" // both systems use /28 prefixes, of which one has room for all pods
	customNetworking = "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG"
	externalSNAT     = "AWS_VPC_K8S_CNI_EXTERNALSNAT"
	programPath      = "PATH" // of ipamd, which runs the iptables that it finds there
	portmapChained   = "--cni-chain=portmap"
)

// has reports whether the lab's systems have a setting.
func (m *migration) has(setting string) bool { return m.lab.BerthdEnv[setting] != "" }

// hostPorts reports whether pods have host ports.
func (m *migration) hostPorts() bool { return slices.Contains(m.lab.DaemonArgs, portmapChained) }

// Of custom networking.
const (
	eniConfigName = "pods"
	podSubnet     = "pods-a" // in the zone of the first node
)

var podNetwork = netip.MustParsePrefix("100.64.0.0/16") // of the VPC, for pods alone

// addPodSubnet adds a network for pods to the VPC, and to its security groups.
func addPodSubnet(s *spec.Spec) {
	v := &s.VPCs[0]
	v.CIDRs = append(v.CIDRs, podNetwork)
	v.Subnets = append(v.Subnets, spec.Subnet{Name: podSubnet, Zone: v.Subnets[0].Zone, CIDR: netip.PrefixFrom(podNetwork.Addr(), 20)})
	everything := &v.SecurityGroups[0].Ingress[0]
	everything.CIDRs = append(everything.CIDRs, podNetwork)
}

const eniConfigs = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: eniconfigs.crd.k8s.amazonaws.com}
spec:
  group: crd.k8s.amazonaws.com
  names: {kind: ENIConfig, plural: eniconfigs, singular: eniconfig}
  scope: Cluster
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// setCustomNetworking creates the ENIConfig of the node, and has `kubectl berth migrate manifests` convert it for Berth.
func (m *migration) setCustomNetworking(ctx context.Context) {
	all := m.lab.Snapshot().Subnets
	subnet := all[slices.IndexFunc(all, func(s vpc.Subnet) bool { return s.Name == podSubnet })].ID
	config := fmt.Sprintf("apiVersion: crd.k8s.amazonaws.com/v1alpha1\nkind: ENIConfig\nmetadata: {name: %s}\nspec: {subnet: %s}\n", eniConfigName, subnet)
	dir := must(os.MkdirTemp(m.lab.Dir, "eniconfig"))
	file := func(kind, text string) (folder string) {
		folder = filepath.Join(dir, kind)
		check(errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, kind+".yaml"), []byte(text), 0o600)))
		return folder
	}
	check(m.lab.Kube.InstallCRDs(ctx, os.DirFS(file("crd", eniConfigs))))
	former := file("former", config)
	check(m.lab.Kube.Apply(ctx, os.DirFS(former)))
	convert := exec.CommandContext(ctx, filepath.Join(m.lab.BinDir, "berthctl"), "migrate", "manifests", filepath.Join(former, "former.yaml"))
	convert.Args[0], convert.Env = "kubectl-berth", []string{"PATH=" + os.Getenv("PATH")}
	check(m.lab.Kube.Apply(ctx, os.DirFS(file("template", string(must(convert.Output()))))))
	await(ctx, "a label of the Node", func() {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.node().Name}}
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, manifests.ENIConfigKey, eniConfigName)
		check(m.lab.Kube.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch))))
	})
}

// onPodSubnet checks that all pods of the node have addresses of the network for pods.
func (m *migration) onPodSubnet() {
	for _, p := range m.node().Pods() {
		if m.has(customNetworking) && !podNetwork.Contains(p.Addr()) {
			fail("pod %s has %s, expected an address of %s", p.Name, p.Addr(), podNetwork)
		}
	}
}

// firstHostPort is that of the first pod with one.
const firstHostPort = 30100

// options returns the options of the next pod of the node. All that are there at the beginning get host ports, and one of Berth's.
func (m *migration) options() (o node.PodOptions) {
	if m.hostPorts() {
		at := firstHostPort
		for _, p := range m.node().Pods() {
			for _, mapping := range p.Ports {
				at = max(at, mapping.HostPort+1)
			}
		}
		o.Ports = []node.PortMapping{{HostPort: at, ContainerPort: echo.Port, Protocol: "tcp"}}
	}
	return o
}

// front is where a pod's host port is reached.
func (m *migration) front(p *node.Pod) netip.AddrPort {
	return netip.AddrPortFrom(m.lab.NodeAddrs(m.node())[0], uint16(p.Ports[0].HostPort))
}

// throughHostPorts starts conversations with the pods that have host ports, of another node and of a host outside.
func (m *migration) throughHostPorts(ctx context.Context, s *stage, t *traffic) {
	for _, p := range m.node().Pods() {
		if len(p.Ports) > 0 {
			t.converseAt(ctx, s.nodes[1].Netns, "tcp", m.front(p))
			t.converseAt(ctx, s.lab.Fabric.InternetPath(), "tcp", m.front(p))
		}
	}
}

// delPod deletes a pod, and checks that nothing is left of its host port.
func (m *migration) delPod(ctx context.Context, name string) {
	p := must(m.node().Pod(name))
	check(m.node().DelPod(ctx, name))
	if len(p.Ports) == 0 {
		return
	}
	for _, line := range m.rulesOf(ctx, "iptables-nft-save") {
		if strings.Contains(line, p.Addr().String()) || strings.Contains(line, p.ContainerID) || strings.Contains(line, fmt.Sprintf("dport %d ", p.Ports[0].HostPort)) {
			fail("the host port of %s left the rule: %s", name, line)
		}
	}
}

// rulesOf returns the rules of the node that a program of iptables prints.
func (m *migration) rulesOf(ctx context.Context, program string) []string {
	var out []byte
	check(ns.Do(m.node().Netns, func() (err error) {
		out, err = exec.CommandContext(ctx, program).Output()
		return err
	}))
	return strings.Split(string(out), "\n")
}

// formerRules returns the chains and rules of the Amazon VPC CNI in iptables-legacy.
func (m *migration) formerRules(ctx context.Context) []string {
	return slices.DeleteFunc(m.rulesOf(ctx, "iptables-legacy-save"), func(l string) bool { return !strings.Contains(l, "AWS") })
}

// keepMarkRule adds a second rule for connections of the primary ENI, until release. ipamd deletes its own and adds it again
// at each start, and loses packets to the internet between the two.
func (m *migration) keepMarkRule() (release func()) {
	second, mask := netlink.NewRule(), uint32(datapath.MarkPrimary)
	second.Family, second.Priority, second.Table, second.Mark, second.Mask = unix.AF_INET, datapath.RulePrimary+1, unix.RT_TABLE_MAIN, mask, &mask
	check(ns.Do(m.node().Netns, func() error { return netlink.RuleAdd(second) }))
	return func() { check(ns.Do(m.node().Netns, func() error { return netlink.RuleDel(second) })) }
}

// migrationSize is the size of the first node. With custom networking its primary ENI has no pods.
func migrationSize(o lab.Options) size {
	if o.BerthdEnv[customNetworking] != "" {
		return size{instanceType: "t3.medium", addresses: 10, pods: 6}
	}
	return sizes[lab.NodeMode]
}
