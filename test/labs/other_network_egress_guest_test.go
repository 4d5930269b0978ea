//go:build guest && e2e

package labs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// The network namespaces that the node routes between.
const (
	gatewayNetns = "berth-chained-gateway"
	outsideNetns = "berth-chained-outside"
)

var (
	gatewayAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8:2::2")}
	outsideAddrs = []netip.Addr{netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("2001:db8:113::2")}
)

// join makes a namespace a host behind this node.
func join(t *testing.T, name string, addrs []netip.Addr) {
	t.Helper()
	harness.OK(t, ns.Create(name))
	t.Cleanup(func() { harness.OK(t, ns.Remove(name)) })
	harness.OK(t, ns.Netlink("/proc/thread-self/ns/net", func(h *netlink.Handle) error { // the first thread may be in another, for good
		own := []netip.Prefix{netip.PrefixFrom(addrs[0], 30), netip.PrefixFrom(addrs[1], 64)}
		return ns.AddHost(h, name[len("berth-"):], ns.Path(name), own, []netip.Addr{addrs[0].Prev(), addrs[1].Prev()}, 1500)
	}))
}

// egressObject creates the Egress, with the gateway in its status that the operator would write.
func egressObject(t *testing.T, api client.Client) *v1alpha1.Egress {
	t.Helper()
	err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "egress"}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "egress", Name: "internet"},
		Spec:       v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24", "2001:db8:113::/64"}, AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"*"}}},
	}
	harness.OK(t, api.Create(t.Context(), e))
	is := v1alpha1.EgressGateway{Name: "gateway", UID: "gateway-1", Addresses: []string{gatewayAddrs[0].String(), gatewayAddrs[1].String()}}
	patch(t, api.Status(), e, map[string]any{"status": map[string]any{"gateways": []v1alpha1.EgressGateway{is}}})
	return e
}

// unguarded removes the admission policies that labs of other packages left in the shared API: the
// test writes what only operator and nodes may.
func unguarded(t *testing.T, api client.Client) {
	t.Helper()
	harness.OK(t, api.DeleteAllOf(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{}))
	harness.Eventually(t, harness.Patience, "no policy keeps the test from EgressClients", func() error {
		o := &v1alpha1.EgressClient{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "unguarded"}, Spec: v1alpha1.EgressClientSpec{PodUID: "1", NodeName: "n1", Egresses: refs()},
		}
		return api.Create(t.Context(), o, client.DryRunAll)
	})
}

// usesEgress writes, as the operator would, which Egresses a pod uses.
func usesEgress(t *testing.T, api client.Client, rt *libcni.RuntimeConf, list ...*v1alpha1.Egress) *v1alpha1.EgressClient {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: rt.Args[2][1]},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	harness.OK(t, api.Create(t.Context(), pod))
	o := &v1alpha1.EgressClient{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: v1alpha1.EgressClientSpec{PodUID: rt.Args[3][1], NodeName: "n1", Egresses: refs(list...)},
	}
	harness.OK(t, api.Create(t.Context(), o))
	return o
}

func refs(list ...*v1alpha1.Egress) []v1alpha1.EgressReference {
	out := []v1alpha1.EgressReference{}
	for _, e := range list {
		out = append(out, v1alpha1.EgressReference{Namespace: e.Namespace, Name: e.Name, UID: string(e.UID)})
	}
	return out
}

// says waits until the node reports a state of a pod, and returns the addresses that it reports.
func says(t *testing.T, api client.Client, o *v1alpha1.EgressClient, state v1alpha1.EgressClientState, egresses int) (addrs []netip.Addr) {
	t.Helper()
	now := &v1alpha1.EgressClient{}
	harness.Eventually(t, harness.Patience, fmt.Sprintf("EgressClient %s says %s with %d Egresses", o.Name, state, egresses), func() error {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), now); err != nil {
			return err
		}
		if n := now.Status.Node; n == nil || n.State != state || len(n.Egresses) != egresses {
			return fmt.Errorf("it says %+v", now.Status.Node)
		}
		return nil
	})
	for _, text := range now.Status.Node.Addresses {
		a, err := netip.ParseAddr(text)
		harness.OK(t, err)
		addrs = append(addrs, a)
	}
	return addrs
}

// seen waits until the hosts outside see a pod by these addresses.
func seen(t *testing.T, rt *libcni.RuntimeConf, by ...netip.Addr) {
	t.Helper()
	for i, to := range outsideAddrs {
		for _, network := range []string{"tcp", "udp"} {
			harness.OK(t, poll.Until(harness.Deadline(t, harness.Patience), func() error {
				r, err := echo.Ask(harness.Deadline(t, harness.Patience), rt.NetNS, network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "hello")
				if err != nil {
					return err
				}
				if r.You != by[i] {
					return fmt.Errorf("%s sees the pod as %s by %s, want %s", to, r.You, network, by[i])
				}
				return nil
			}))
		}
	}
}

// TestEgressAfterAnotherNetwork has a pod of another network reach the outside by a gateway, over
// changes while it runs, a kill of the daemon, and DEL. The test stands in for the operator and the
// gateway's program.
func TestEgressAfterAnotherNetwork(t *testing.T) {
	harness.StartKube(t)
	harness.KubeClean(t)
	harness.OK(t, ns.SetSysctls(append(slices.Clone(ns.Forwarding), ns.Sysctl{Name: "net/ipv6/conf/default/accept_dad", Value: "0"})...))
	join(t, gatewayNetns, gatewayAddrs)
	join(t, outsideNetns, outsideAddrs)
	server, err := echo.Serve(ns.Path(outsideNetns))
	harness.OK(t, err)
	t.Cleanup(func() { harness.OK(t, server.Close()) })
	harness.OK(t, ns.Do(ns.Path(gatewayNetns), func() error { return ns.SetSysctls(ns.Forwarding...) }))
	kernel, err := egressgateway.Open(ns.Path(gatewayNetns))
	harness.OK(t, err)
	t.Cleanup(kernel.Close)

	api := harness.KubeClient(t)
	unguarded(t, api)
	e := egressObject(t, api)
	h := newHost(t)
	harness.OK(t, os.MkdirAll(h.conf(), 0o755))
	h.start()
	ctx := harness.Deadline(t, harness.Patience)
	list, rt := h.list("1.0.0", h.berth()), h.sandbox()
	rt.CapabilityArgs["io.kubernetes.cri.pod-annotations"] = map[string]string{v1alpha1.AnnotationEgressPrefix + e.Namespace: e.Name}
	o := usesEgress(t, api, rt, e)
	_, err = h.cni.AddNetworkList(ctx, list, rt)
	harness.OK(t, err)
	own := says(t, api, o, v1alpha1.EgressClientSetUp, 1)
	if len(own) != 2 {
		t.Fatalf("the node says that the pod has %v", own)
	}
	destinations := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:113::/64")}
	harness.OK(t, kernel.Apply(ctx, egressgateway.Setup{
		Link: "eth0", Addrs: gatewayAddrs, Port: 5555, Destinations: destinations, Clients: []egressgateway.Client{{UID: "pod", Addrs: own}},
	}))
	seen(t, rt, gatewayAddrs...)
	harness.OK(t, h.cni.CheckNetworkList(ctx, list, rt))

	// A removed destination is reached by the other network's route.
	patch(t, api, e, map[string]any{"spec": map[string]any{"destinations": []string{"203.0.113.0/24"}}})
	seen(t, rt, gatewayAddrs[0], own[1])
	harness.OK(t, h.daemon.Kill())
	patch(t, api, e, map[string]any{"spec": map[string]any{"destinations": []string{"203.0.113.0/24", "2001:db8:113::/64"}}})
	h.start()
	seen(t, rt, gatewayAddrs...)

	// No client any more, and again.
	patch(t, api, o, map[string]any{"spec": map[string]any{"egresses": refs()}})
	seen(t, rt, own...)
	harness.Eventually(t, harness.Patience, "nothing of egress in the pod", func() error { return nothingIn(rt.NetNS) })
	patch(t, api, o, map[string]any{"spec": map[string]any{"egresses": refs(e)}})
	seen(t, rt, gatewayAddrs...)

	harness.OK(t, h.cni.DelNetworkList(ctx, list, rt))
	harness.OK(t, nothingIn(rt.NetNS))
	says(t, api, o, v1alpha1.EgressClientGone, 0)
}

func patch(t *testing.T, api any, o client.Object, body map[string]any) {
	t.Helper()
	data, err := json.Marshal(body)
	harness.OK(t, err)
	p := client.RawPatch(types.MergePatchType, data)
	switch api := api.(type) {
	case client.SubResourceWriter:
		harness.OK(t, api.Patch(t.Context(), o, p))
	case client.Client:
		harness.OK(t, api.Patch(t.Context(), o, p))
	}
}

// nothingIn expects neither tunnels nor rules of egress in a namespace.
func nothingIn(netns string) error {
	return ns.Netlink(netns, func(h *netlink.Handle) error {
		var errs []error
		for _, name := range []string{tunnel.Link4, tunnel.Link6} {
			if _, err := h.LinkByName(name); err == nil {
				errs = append(errs, fmt.Errorf("link %s is there", name))
			}
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules, err := h.RuleList(family)
			errs = append(errs, err)
			for _, r := range rules {
				if r.Priority != 0 && r.Priority < 32766 {
					errs = append(errs, fmt.Errorf("rule %s is there", r))
				}
			}
		}
		return errors.Join(errs...)
	})
}
