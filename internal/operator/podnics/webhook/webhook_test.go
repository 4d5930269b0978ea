package webhook_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/operator/podnics"
	"github.com/berthnet/berth/internal/operator/podnics/webhook"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

func TestMain(m *testing.M) { os.Exit(harness.KubeWithScheduler(m.Run)) }

const limit = controllers.Limit

// serve runs an operator that serves the webhook with the chart's rights in mode port, called by the API server, until end or the end of the
// test. It also returns its metrics.
func serve(t *testing.T) (end func(), all []prometheus.Collector) {
	t.Helper()
	return serveFor(t, deploy.InMode(deploy.PortMode, "test"), webhook.Options{First: nicrequest.First{Name: "eth0", IsPort: true}}, []*watched.Kind{watched.Namespaces, podnics.VPCs})
}

// serveFor works like serve for a release of the chart. more is set up before the manager, whose cache keeps the given kinds.
func serveFor(t *testing.T, r deploy.Release, o webhook.Options, kinds []*watched.Kind, more ...func(manager.Manager, *webhook.Options) error) (end func(), all []prometheus.Collector) {
	t.Helper()
	cfg := harness.OperatorConfigOf(t, r)
	l := o.Listener
	if l == nil {
		var err error
		l, err = net.Listen("tcp", "127.0.0.1:0")
		harness.OK(t, err)
	}
	controllers.ServeWebhookAt(t, r, l.Addr().String())
	kinds, err := watched.Set(append(kinds, watched.Nodes)...)
	harness.OK(t, err)
	mgr, err := controllers.Manager(cfg, kinds)
	harness.OK(t, err)
	m := webhook.NewMetrics()
	o.Listener, o.Namespace, o.Clock, o.Metrics = l, "kube-system", clock.Real{}, m
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	for _, setup := range more {
		harness.OK(t, setup(mgr, &o))
	}
	hook, err := webhook.Setup(mgr, o)
	harness.OK(t, err)
	return controllers.Run(t, mgr), append(hook, m.Collectors()...)
}

func pod(name string, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	for i := 0; i < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	return p
}

// inVPC returns a pod with NICs in vpc-1.
func inVPC(nics string) *corev1.Pod {
	return pod("a", v1alpha1.AnnotationVPC, "vpc-1", v1alpha1.AnnotationNICs, nics)
}

// makeVPC creates a VPC with the subnet web, for namespaces with a label.
func makeVPC(t *testing.T, name string) {
	t.Helper()
	most, admin := int32(2), harness.KubeClient(t)
	some := v1alpha1.VPCNamespaces{Names: []string{"elsewhere"}, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "default"}}}
	v := &v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.VPCSpec{
		Provider: v1alpha1.ProviderNeutron, Network: "blue", Endpoint: "http://127.0.0.1:9696", Project: "p", MaxNICsPerPod: &most,
		AllowedNamespaces: &some, NamespaceLimits: []v1alpha1.VPCNamespaceLimits{{Namespaces: some, SecurityGroups: []string{"g-1"}}},
	}}
	harness.OK(t, admin.Create(t.Context(), v))
	v.Status.Subnets = []v1alpha1.VPCSubnet{{ID: "subnet-1", Name: "web", CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}}
	harness.OK(t, admin.Status().Update(t.Context(), v))
}

// value returns the value of one series, by the values of its labels.
func value(t *testing.T, from []prometheus.Collector, name string, labels ...string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	for _, c := range from {
		harness.OK(t, r.Register(c))
	}
	families, err := r.Gather()
	harness.OK(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			var has []string
			for _, l := range m.Label {
				has = append(has, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(has, labels) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no series of %s with labels %q", name, labels)
	return 0
}

// refused returns nil if the webhook rejected a request with this text.
func refused(err error, text string) error {
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "ports.berth.dev") || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("got %w, want a rejection by the webhook: %s", err, text)
	}
	return nil
}

// Everything that the API server's policies cannot judge is rejected by the webhook with the right message. Without an operator, pods are
// admitted.
func TestWebhook(t *testing.T) {
	harness.KubeClean(t)
	makeVPC(t, "vpc-1")
	admin := harness.KubeClient(t)
	end, metrics := serve(t)
	harness.Eventually(t, limit, "webhook called", func() error {
		err := admin.Create(t.Context(), inVPC("no list"), client.DryRunAll)
		if err == nil {
			return fmt.Errorf("webhook not called yet")
		}
		return refused(err, "expected a list of NICs")
	})
	const nics = "metadata.annotations[berth.dev/nics]"
	for text, want := range map[string]string{
		"- [":                                    nics + ": is neither YAML nor JSON",
		"[{subnett: web}]":                       nics + "[0].subnett: unknown, expected one of",
		"[{}, {name: eth0}, {}]":                 nics + ": has 3 NICs, expected 2 at most",
		"[{name: eth0}, {name: eth0}]":           nics + "[1].name: eth0 is the name of " + nics + "[0] too",
		"[{name: lo}]":                           nics + "[0].name: is \"lo\"",
		"[{name: net1}]":                         nics + ": names no NIC eth0",
		"[{portID: a2815656-76f7, subnet: web}]": nics + "[0].portID: excludes subnet",
		"[{portID: a2815656-76f7}, {portID: a2815656-76f7}]": nics + "[1].portID: is that of " + nics + "[0]",
		"[{ip: 10.0.0}]":                   nics + "[0].ip: is \"10.0.0\"",
		"[{ip: 10.0.0.1}]":                 nics + "[0].ip: 10.0.0.1 is the gateway of subnet web",
		"[{ip: 10.0.0.0}]":                 nics + "[0].ip: 10.0.0.0 is the address of subnet web",
		"[{ip: 10.0.0.255}]":               nics + "[0].ip: 10.0.0.255 is the broadcast address of subnet web",
		"[{ip: 10.0.1.5}]":                 nics + "[0].ip: 10.0.1.5 is in no subnet of VPC vpc-1",
		"[{subnet: web, ip: 10.0.1.5}]":    nics + "[0].ip: 10.0.1.5 is not in subnet web",
		"[{}, {securityGroup: g-2}]":       nics + "[1].securityGroups[0]: g-2 is not for namespace default in VPC vpc-1, expected one of g-1",
		"[{subnet: green}]":                nics + "[0].subnet: VPC vpc-1 has no subnet \"green\"",
		"[{ip: 10.0.0.5}, {ip: 10.0.0.5}]": nics + "[1].ip: 10.0.0.5 is asked for by " + nics + "[0] too",
	} {
		if err := refused(admin.Create(t.Context(), inVPC(text), client.DryRunAll), want); err != nil {
			t.Errorf("pod with NICs %s: %v", text, err)
		}
	}
	harness.OK(t, admin.Create(t.Context(), inVPC("[{subnet: web, ip: 10.0.0.5}, {securityGroup: g-1}]"), client.DryRunAll))
	harness.OK(t, admin.Create(t.Context(), pod("a", v1alpha1.AnnotationVPC, "unknown"), client.DryRunAll))

	t.Run("namespaces by labels", func(t *testing.T) {
		other := controllers.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}})
		p := pod("a", v1alpha1.AnnotationVPC, "vpc-1")
		p.Namespace = other.Name
		harness.Eventually(t, limit, "pod of another namespace rejected", func() error {
			return refused(admin.Create(t.Context(), p.DeepCopy(), client.DryRunAll), "VPC vpc-1 is not for namespace "+other.Name)
		})
		n := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: other.Name, Name: "a"}, Spec: v1alpha1.PodNICSpec{VPC: "vpc-1"}}
		harness.OK(t, refused(admin.Create(t.Context(), n), "spec.vpc: VPC vpc-1 is not for namespace "+other.Name))
		harness.OK(t, admin.Delete(t.Context(), other))
	})
	t.Run("edits of a pod", func(t *testing.T) {
		p := controllers.Create(t, inVPC("[{ip: 10.0.0.5}]"))
		edit := func(text string) error {
			now := p.DeepCopy()
			now.Annotations[v1alpha1.AnnotationNICs] = text
			return admin.Update(t.Context(), now, client.DryRunAll)
		}
		harness.OK(t, refused(edit("[{ip: 10.0.0.6}]"), nics+"[0]: eth0 cannot be changed while the pod has it"))
		harness.OK(t, refused(edit("[{name: net1}]"), nics))
		harness.OK(t, refused(edit("[{ip: 10.0.0.5}, {ip: 10.0.0.1}]"), nics+"[1].ip: 10.0.0.1 is the gateway"))
		harness.OK(t, edit("[{ip: 10.0.0.5}, {ip: 10.0.0.7}]"))
		harness.OK(t, admin.Delete(t.Context(), p))
	})
	t.Run("PodNICs", func(t *testing.T) {
		for want, a := range map[string]v1alpha1.NICAddress{
			"spec.addresses[0].ip: 10.0.0.1 is the gateway":               {IP: "10.0.0.1"},
			"spec.addresses[0].subnet: VPC vpc-1 has no subnet \"green\"": {Subnet: "green"},
			"": {Subnet: "web", IP: "10.0.0.9"},
		} {
			n := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: v1alpha1.PodNICSpec{VPC: "vpc-1", Addresses: []v1alpha1.NICAddress{a}}}
			err := admin.Create(t.Context(), n, client.DryRunAll)
			if want != "" {
				err = refused(err, want)
			}
			harness.OK(t, err)
		}
		n := controllers.Create(t, &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: v1alpha1.PodNICSpec{VPC: "vpc-1", SecurityGroups: []string{"g-1"}}})
		n.Spec.SecurityGroups = []string{"g-1", "g-2"}
		harness.OK(t, refused(admin.Update(t.Context(), n, client.DryRunAll), "spec.securityGroups[1]: g-2 is not for namespace default"))
		harness.OK(t, admin.Delete(t.Context(), n))
	})
	t.Run("metrics", func(t *testing.T) {
		harness.CheckMetrics(t, metrics, webhook.Families, map[string]string{
			`berth_operator_webhook_reviews_total{outcome="warned",resource="pods"}`:     "1",
			`berth_operator_webhook_reviews_total{outcome="error",resource="pods"}`:      "0",
			`berth_operator_webhook_reviews_total{outcome="allowed",resource="podnics"}`: "2",
			`berth_operator_webhook_reviews_total{outcome="refused",resource="podnics"}`: "4",
		})
		ends := value(t, metrics, "berth_operator_webhook_certificate_expiry_timestamp_seconds")
		if left := time.Until(time.Unix(int64(ends), 0)); left < 24*time.Hour || left > 30*24*time.Hour {
			t.Errorf("certificate expires in %v, want 1 to 30 days", left)
		}
		if n := value(t, metrics, "berth_operator_webhook_certificate_checks_total", "success"); n < 1 {
			t.Error("certificate checks were not counted")
		}
		if n := value(t, metrics, "berth_operator_webhook_reviews_total", "refused", "pods"); n < 16 {
			t.Errorf("%v reviews rejected a pod, want at least 16", n)
		}
	})
	t.Run("without an operator", func(t *testing.T) {
		end()
		harness.OK(t, admin.Create(t.Context(), inVPC("no list"), client.DryRunAll))
	})
}

// addresses adds addresses to the machine, and returns them.
func addresses(t *testing.T, n int) (list []string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	harness.OK(t, err)
	next := netip.MustParseAddr("198.51.100.1")
	for range n {
		a, err := netlink.ParseAddr(next.String() + "/32")
		harness.OK(t, err)
		harness.OK(t, netlink.AddrAdd(lo, a))
		t.Cleanup(func() { harness.OK(t, netlink.AddrDel(lo, a)) })
		list, next = append(list, next.String()), next.Next()
	}
	return list
}

// Pods that hold requests with endless bodies open cannot keep a pod from being created.
func TestPodsAreCreatedDespiteHeldRequests(t *testing.T) {
	harness.KubeClean(t)
	makeVPC(t, "vpc-1")
	all, admin := addresses(t, 18), harness.KubeClient(t)
	servers := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}}, // the API server's requests come from the machine's own address
	}
	harness.OK(t, admin.Create(t.Context(), servers))
	t.Cleanup(func() { harness.OK(t, admin.Delete(context.Background(), servers)) })
	for name, clients := range map[string][]netip.Prefix{"attackers that may not ask": nil, "attackers that may ask": {netip.MustParsePrefix("198.51.100.0/24")}} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", all[0]+":0")
			harness.OK(t, err)
			o := webhook.Options{Listener: l, Clients: clients, First: nicrequest.First{Name: "eth0", IsPort: true}}
			end, metrics := serveFor(t, deploy.InMode(deploy.PortMode, "test"), o, []*watched.Kind{watched.Namespaces, podnics.VPCs})
			defer end()
			judged := func() error {
				return refused(admin.Create(t.Context(), inVPC("no list"), client.DryRunAll), "expected a list of NICs")
			}
			harness.Eventually(t, limit, "webhook called", judged)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, from := range all[1:] {
				for range 8 {
					go hold(ctx, from, l.Addr().String())
				}
			}
			harness.Eventually(t, limit, "attack in progress", func() error {
				if n := value(t, metrics, "berth_operator_webhook_refused_connections_total"); clients == nil && n < 17*8 {
					return fmt.Errorf("%v connections refused", n)
				}
				return nil
			})
			for i := range 6 {
				// Beside other tests, handshakes may take longer than the API server waits for the webhook.
				harness.Eventually(t, limit, fmt.Sprintf("pod %d rejected during the attack", i), judged)
				<-time.After(200 * time.Millisecond) // while connections are opened again
			}
		})
	}
}

// hold keeps a POST without an end open at an address all the time.
func hold(ctx context.Context, from, to string) {
	for ctx.Err() == nil {
		d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, Config: &tls.Config{InsecureSkipVerify: true}}
		if c, err := d.DialContext(ctx, "tcp", to); err == nil {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			_, _ = io.WriteString(c, "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			_, _ = io.Copy(io.Discard, c) // blocks until the connection is closed
			stop()
			_ = c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}
