package ports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/neutronfake"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// testCase runs on a bench without pods, and leaves none.
type testCase struct {
	name string
	test func(*bench)
}

// TestPods follows the life cycle of pods with one NIC and with several, through the CNI verbs. berthd has the
// privileges granted by the chart. Both providers share most cases; by default a third of the shared ones runs with
// the second provider (harness.Sample).
func TestPods(t *testing.T) {
	for _, provider := range []struct {
		name  string
		raise func(context.Context, portcloud.Options) (portcloud.Cloud, error) // nil for the lab's default
		args  []string                                                          // arguments of berthd
		every int                                                               // sampling rate of the shared cases
		own   []testCase
	}{
		{"Neutron", nil, nil, 1, []testCase{{"AddressesThatChange", (*bench).addressesThatChange}, {"ByALinuxBridge", (*bench).byALinuxBridge}, {"SocketOfAnotherUser", (*bench).socketOfAnotherUser}}},
		{"Alcor", portcloud.NewAlcor, []string{"--agent-wait=1m"}, 3, []testCase{{"Machines", (*bench).machinesInAlcor}, {"LinkGoesBack", (*bench).linkGoesBack}, {"AgentAway", (*bench).agentAway}}},
	} {
		t.Run(provider.name, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			// Without a second operator, leader election would only add a wait for the Lease of a killed one.
			b := raise(t, lab.Options{PortCloud: provider.raise, NetworkPolicies: true, DaemonArgs: provider.args, OperatorArgs: []string{"--leader-elect=false"}})
			for _, p := range slices.Concat(harness.Sample(t, provider.every, []testCase{
				{"OneNIC", (*bench).oneNIC},
				{"SeveralNICs", (*bench).severalNICs},
				{"Check", (*bench).check},
				{"HotPlug", flow(demo.HotPlug)},
				{"HotPlugRefused", (*bench).hotPlugRefused},
				{"HotPlugOfUsersNICs", (*bench).hotPlugOfUsersNICs},
				{"HotPlugWhileKilled", (*bench).hotPlugWhileKilled},
				{"HotPlugAgain", (*bench).hotPlugAgain},
				{"FixedAddress", flow(demo.FixedNIC)},
				{"UsersPort", flow(demo.UsersPort)},
				{"PortOfOnePod", (*bench).portOfOnePod},
				{"Refused", (*bench).refused},
				{"OtherVPC", flow(demo.OtherVPC)},
				{"NetworkPolicies", flow(demo.NetworkPolicies)},
				{"ManyAtOnce", (*bench).manyAtOnce},
				{"PortDeleted", flow(demo.PortDeleted)},
			}), provider.own) {
				t.Run(p.name, func(t *testing.T) { p.test(b.on(t)) })
			}
		})
	}
}

func (b *bench) oneNIC() {
	near, far := b.add(b.a, "near", ""), b.add(b.b, "far", "- subnet: subnet-2")
	r := b.result(near)
	if len(r.IPs) != 1 || r.IPs[0].Gateway.String() != "192.168.0.1" || r.IPs[0].Address.Mask.String() != "ffffff00" {
		b.Errorf("addresses in the result = %+v, want one with the subnet's gateway and mask", r.IPs)
	}
	nic := b.nic(near, "eth0")
	var inPod string
	for _, i := range r.Interfaces {
		if i.Name == "eth0" {
			inPod = i.Mac
		}
	}
	if inPod != nic.Status.MAC || !nic.Status.Made || !nic.Status.DefaultRoute {
		b.Errorf("interfaces in the result = %+v, do not match the PodNIC %+v", r.Interfaces, nic.Status)
	}
	b.reaches(near, far) // through the network's router
	b.reaches(far, near)
	harness.Settle(b.T, b.Lab)
	harness.Remove(b.T, b.a, "near")
	harness.OK(b.T, b.a.DelAgain(harness.Deadline(b.T, harness.Patience), near))
	harness.Remove(b.T, b.b, "far")
	b.empty()
}

// clear waits until the lab is at rest, removes all pods, and waits until nothing of them is left.
func (b *bench) clear() {
	b.Helper()
	harness.Settle(b.T, b.Lab)
	harness.RemoveAll(b.T, b.a)
	harness.RemoveAll(b.T, b.b)
	b.empty()
}

// empty waits until nothing of any pod is left.
func (b *bench) empty() {
	b.Helper()
	harness.Settle(b.T, b.Lab)
	harness.Eventually(b.T, harness.Rest, "all PodNICs and ports are deleted", func() error {
		nics, err := b.Kube.PodNICs(b.Context())
		ports, portErr := b.Ports.Ports(b.Context())
		return errors.Join(err, portErr, harness.Equal("PodNICs", len(nics), 0), harness.Equal("ports", len(ports), 0))
	})
}

func (b *bench) severalNICs() {
	p := b.add(b.a, "several", "- {}\n- subnet: subnet-2\n  ip: 192.168.1.20\n- {name: storage, subnet: subnet-1}")
	r := b.result(p)
	names := map[string]bool{}
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			names[i.Name] = true
		}
	}
	if len(r.IPs) != 3 || !names["eth0"] || !names["eth1"] || !names["storage"] {
		b.Errorf("result = %+v with %v, want three interfaces with addresses", r.Interfaces, r.IPs)
	}
	if got := addresses(b.nic(p, "eth1")); got != "192.168.1.20" {
		b.Errorf("address of eth1 = %s, want 192.168.1.20", got)
	}
	other := b.add(b.b, "other", "- {subnet: subnet-2, ip: 192.168.1.30}")
	b.reaches(p, other)
	b.clear()
}

// check checks that CHECK detects a change of a NIC.
func (b *bench) check() {
	p := b.add(b.a, "checked", "[{}, {subnet: subnet-2}]")
	b.checkNotices(p, "eth1")
	harness.OK(b.T, b.a.Status(harness.Deadline(b.T, harness.Patience)))
	b.clear()
}

// checkNotices removes the addresses of an interface: CHECK must name the interface and the address.
func (b *bench) checkNotices(p *node.Pod, link string) {
	b.Helper()
	ctx := harness.Deadline(b.T, harness.Patience)
	harness.OK(b.T, b.a.CheckPod(ctx, p.Name))
	harness.OK(b.T, b.a.GC(ctx))
	harness.OK(b.T, b.a.CheckPod(ctx, p.Name))
	addr := addresses(b.nic(p, link))
	// A repair may come before CHECK: the addresses are then removed again.
	harness.Eventually(b.T, harness.Patience, "CHECK of a pod whose "+link+" lost "+addr, func() error {
		harness.OK(b.T, ns.Netlink(p.Netns(), func(h *netlink.Handle) error {
			l, err := h.LinkByName(link)
			if err != nil {
				return err
			}
			list, err := h.AddrList(l, netlink.FAMILY_V4)
			for _, a := range list {
				err = errors.Join(err, h.AddrDel(l, &a))
			}
			return err
		}))
		if err := b.a.CheckPod(ctx, p.Name); err == nil || !harness.Says(err.Error(), link, addr) {
			return errors.Join(errors.New("CHECK does not report it"), err)
		}
		return nil
	})
}

// flow runs a proof of the demo, which the tests of a real Neutron also run.
func flow(try demo.Flow) func(*bench) {
	return func(b *bench) {
		figures, err := try(harness.Deadline(b.T, harness.Patience), b.Lab)
		harness.OK(b.T, err)
		b.T.Log(figures)
		b.empty()
	}
}

// portOfOnePod assigns a user's port to a pod: a second pod cannot use it meanwhile.
func (b *bench) portOfOnePod() {
	ctx, v := harness.Deadline(b.T, harness.Patience), b.VPCs[0]
	subnet := v.Network.Subnet("subnet-1")
	made, err := b.Ports.AddPort(ctx, portcloud.Port{
		Name: "given", Network: v.Network.ID, Groups: []string{v.Open}, Tags: b.TagsFor("default"),
		Addresses: []portcloud.Address{{Subnet: subnet.ID, IP: subnet.CIDR.Addr().Next().Next().Next()}},
	})
	harness.OK(b.T, err)
	b.add(b.a, "given", "- portID: "+made.ID)
	_, err = b.b.AddPod(ctx, "thief", pod("- portID: "+made.ID))
	harness.Fails(b.T, err, 11, made.ID)
	harness.Remove(b.T, b.a, "given")
	harness.Settle(b.T, b.Lab)
	harness.OK(b.T, b.Ports.RemovePort(ctx, made.ID))
	b.empty()
}

// refused requests NICs that cannot exist.
func (b *bench) refused() {
	ctx := harness.Deadline(b.T, harness.Patience)
	for name, tc := range map[string]struct {
		nics string
		code uint
		says []string
	}{
		"gateway": {"[{subnet: subnet-1, ip: 192.168.0.1}]", 11, []string{"192.168.0.1", "gateway"}},
		"subnet":  {"[{subnet: subnet-9}]", 11, []string{"subnet-9"}},
		"key":     {"[{subnett: subnet-1}]", 7, []string{"berth.dev/nics", "subnett"}},
		"twice":   {"[{name: eth0}, {name: eth0}]", 7, []string{"berth.dev/nics", "eth0"}},
		"yaml":    {"[{", 7, []string{"berth.dev/nics"}},
	} {
		b.Run(name, func(t *testing.T) {
			_, err := b.a.AddPod(ctx, "refused-"+name, pod(tc.nics))
			harness.Fails(t, err, tc.code, tc.says...)
		})
	}
	_, err := b.a.AddPod(ctx, "nowhere", vpcPod("no-such-vpc", ""))
	harness.Fails(b.T, err, 11, "nowhere", "not created a PodNIC", "VPC no-such-vpc", "Events")
	b.empty()
}

// manyAtOnce adds pods on both nodes concurrently.
func (b *bench) manyAtOnce() {
	const each = 8
	calls := func() [3]int { return [...]int{b.calls("POST", ""), b.calls("PUT", "/*"), b.calls("GET", "")} }
	before := calls()
	harness.OK(b.T, harness.AtOnce(2, func(i int) error { return harness.AddMany(b.T, b.Nodes()[i], "many", each, harness.Once) }))
	after := calls()
	b.Logf("%d pods took %d calls that create ports, %d that change them, %d that list them", 2*each, after[0]-before[0], after[1]-before[1], after[2]-before[2])
	b.clear()
}

// linkGoesBack uses a NIC that outlives its pod: the agent's link moves into the pod, back to the VPC's namespace,
// and is deleted with the port.
func (b *bench) linkGoesBack() {
	ctx := harness.Deadline(b.T, harness.Patience)
	nic := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}, Spec: v1alpha1.PodNICSpec{VPC: b.VPCs[0].Name}}
	harness.OK(b.T, b.Kube.Client.Create(ctx, nic))
	home := func(want ...string) {
		b.Helper()
		harness.Eventually(b.T, harness.Rest, fmt.Sprintf("links in the VPCs' namespaces: %q", want), func() error {
			got, err := b.alcor.Home(b.a.Name)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("links = %q", got)
			}
			return err
		})
	}
	for range 2 {
		p := b.add(b.a, "kept", "[{nic: kept}]")
		home()
		id := b.nic(p, "eth0").Status.PortID
		harness.Settle(b.T, b.Lab)
		harness.Remove(b.T, b.a, "kept")
		home(id)
		harness.Settle(b.T, b.Lab)
	}
	harness.OK(b.T, b.Kube.Client.Delete(ctx, nic))
	home()
	b.empty()
}

// agentAway stops a node's agent: an ADD waits for the port's link until its timeout, and another one succeeds once
// the agent is back.
func (b *bench) agentAway() {
	harness.OK(b.T, b.alcor.Crash(b.a.Name))
	ctx := harness.Deadline(b.T, harness.Patience)
	_, err := b.a.AddPod(ctx, "early", pod("[{}]"))
	harness.Fails(b.T, err, 11, "the pod's NICs are not on the node yet", "the agent of the VPC on this node has not created the port's link")
	added := make(chan error, 1)
	go func() { _, err := b.a.AddPod(ctx, "late", node.PodOptions{}); added <- err }()
	harness.Eventually(b.T, harness.Patience, "ADD is waiting for the link", func() error {
		view, err := b.a.Get(ctx, node.IntrospectionURL+"/pod?namespace=default&name=late-"+b.a.Name)
		if err == nil && !harness.Says(view, "no-link") {
			err = errors.New(view)
		}
		return err
	})
	harness.OK(b.T, b.alcor.Revive(b.a.Name))
	harness.OK(b.T, <-added)
	b.clear()
}

// byALinuxBridge runs pods on hosts whose firewall Neutron reports as iptables-based.
func (b *bench) byALinuxBridge() {
	for _, n := range b.Nodes() {
		b.model.Neutron.AddHost(n.Name, neutronfake.Host{Agent: true, Hybrid: true})
		defer b.model.Neutron.AddHost(n.Name, neutronfake.Host{})
	}
	near, far := b.add(b.a, "near", "[{}, {subnet: subnet-2}]"), b.add(b.b, "far", "- subnet: subnet-2")
	bridge := "qbr" + b.nic(near, "eth0").Status.PortID[:11]
	there := func() bool {
		err := ns.Netlink(b.a.Netns, func(h *netlink.Handle) error { _, err := h.LinkByName(bridge); return err })
		return err == nil
	}
	if !there() {
		b.Errorf("%s lacks %s", b.a.Name, bridge)
	}
	b.reaches(near, far)
	b.reaches(far, near)
	harness.OK(b.T, b.a.CheckPod(harness.Deadline(b.T, harness.Patience), "near"))
	harness.Settle(b.T, b.Lab)
	harness.Remove(b.T, b.a, "near")
	harness.Remove(b.T, b.b, "far")
	if there() {
		b.Errorf("%s still has %s", b.a.Name, bridge)
	}
	b.empty()
}

// socketOfAnotherUser uses a socket of Open vSwitch to which berthd may not write without DAC_OVERRIDE.
func (b *bench) socketOfAnotherUser() {
	socket := strings.TrimPrefix(b.model.OVN.Switch(b.a.Name).Endpoint(), "unix:")
	info, err := os.Stat(socket)
	harness.OK(b.T, err)
	harness.OK(b.T, os.Chmod(socket, 0))
	before, err := os.Stat(b.a.LogFile())
	harness.OK(b.T, err)
	harness.OK(b.T, b.a.Kill())
	harness.OK(b.T, b.a.Start())
	harness.Eventually(b.T, harness.Patience, "berthd logs that permission is denied", func() error {
		text, err := os.ReadFile(b.a.LogFile())
		if err == nil && !harness.Says(string(text[before.Size():]), socket, "permission denied") {
			err = errors.New(b.a.LogTail(20))
		}
		return err
	})
	b.container.Allow(b.T, append(b.container.Capabilities(), "DAC_OVERRIDE")...)
	harness.Restart(b.T, b.a)
	b.add(b.a, "let-in", "")
	b.container.Allow(b.T, b.container.Capabilities()...)
	harness.OK(b.T, os.Chmod(socket, info.Mode()))
	b.clear()
}
