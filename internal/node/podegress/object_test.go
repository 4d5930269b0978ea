package podegress

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthnet/berth/api/v1alpha1"
)

// object is an Egress with gateways of some numbers, as the API server has it.
func object(name string, gateways ...int) *v1alpha1.Egress {
	o := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "internet", Name: name, UID: useNamed(name).uid},
		Spec:       v1alpha1.EgressSpec{Destinations: []string{"203.0.113.0/24"}, SessionAffinity: corev1.ServiceAffinityNone, TunnelTo: v1alpha1.TunnelToGateways},
	}
	for _, i := range gateways {
		g := gatewayNumber(i)
		o.Status.Gateways = append(o.Status.Gateways, v1alpha1.EgressGateway{Name: "g", UID: g.uid, Addresses: texts(g.addrs)})
	}
	return o
}

func TestReadEgress(t *testing.T) {
	o := object("nat", 2, 1)
	if d := cmp.Diff(egressWith("nat", gatewayNumber(1), gatewayNumber(2)), readEgress(o), cmp.AllowUnexported(egress{}, gateway{}), cmpopts.IgnoreFields(egress{}, "selector"), plain); d != "" {
		t.Error(d)
	}
	o.Spec.SessionAffinity, o.Spec.TunnelTo = corev1.ServiceAffinityClientIP, v1alpha1.TunnelToService
	o.Spec.FouSourcePortAuto, o.Spec.OriginatingOnly = true, true
	o.Spec.Destinations = []string{"::/0", "0.0.0.0/0", "0.0.0.0/0"}
	o.Status.ServiceIPs = []string{"fd00::1", "10.96.0.1"}
	got := readEgress(o)
	whole := o.DeepCopy()
	o.Annotations = map[string]string{"large": "text"}
	o.Spec.Clients = &v1alpha1.EgressClientSelector{PodSelector: &v1alpha1.LabelSelector{}}
	o.Spec.Template = &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: []byte("large")}}
	o.Spec.AllowedNamespaces = &v1alpha1.VPCNamespaces{Names: []string{"*"}}
	whole.Spec.Clients = o.Spec.Clients
	if trimEgress(o); !reflect.DeepEqual(o, whole) {
		t.Errorf("trimmed: %+v, want %+v", o, whole)
	}
	if got.err != nil || !got.affine || !got.toService || !got.sourceAuto || !got.originating || !slices.Equal(got.destinations, prefixes("0.0.0.0/0", "::/0")) || !slices.Equal(got.service, addrs("10.96.0.1", "fd00::1")) {
		t.Errorf("got %+v", got)
	}
}

// Fields that make no sense are left out and reported; none ends the daemon.
func TestInvalidEgressFieldsAreIgnored(t *testing.T) {
	many := func(n int, text string) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf(text, i/65536, i/256%256, i%256))
		}
		return list
	}
	for name, tt := range map[string]struct {
		make     func(o *v1alpha1.Egress)
		says     []string
		unusable bool
		gateways []string // that are left
	}{
		"10,000 destinations":          {func(o *v1alpha1.Egress) { o.Spec.Destinations = many(10000, "2%d.%d.%d.0/24") }, []string{"spec.destinations has 10000 networks, expected at most 256"}, true, []string{"gw-0001"}},
		"no destination that is a one": {func(o *v1alpha1.Egress) { o.Spec.Destinations = []string{"10.0.0.1/8", "x", "::ffff:10.0.0.0/104"} }, []string{`spec.destinations[0] is "10.0.0.1/8", expected a CIDR without host bits`, "and 1 more"}, true, []string{"gw-0001"}},
		"one of several destinations":  {func(o *v1alpha1.Egress) { o.Spec.Destinations = []string{"203.0.113.0/24", "x\ny"} }, []string{`spec.destinations[1] is "x y"`}, false, []string{"gw-0001"}},
		"addresses that are no host's": {func(o *v1alpha1.Egress) {
			o.Status.Gateways = []v1alpha1.EgressGateway{
				{UID: "a", Addresses: []string{"224.0.0.1"}}, {UID: "b", Addresses: []string{"127.0.0.1", "::1"}}, {UID: "c", Addresses: []string{"0.0.0.0"}}, {UID: "d"},
				{UID: "e", Addresses: []string{"fe80::1%eth0", "10.9.0.9"}}, {UID: "f", Addresses: []string{"10.9.0.10", "10.9.0.11"}}, {UID: "g", Addresses: []string{"255.255.255.255"}},
			}
		}, []string{`status.gateways[0].addresses[0] is "224.0.0.1", expected the address of one host`, "more"}, false, []string{"e", "f"}},
		"UIDs": {func(o *v1alpha1.Egress) {
			o.Status.Gateways = append(o.Status.Gateways, o.Status.Gateways[0], v1alpha1.EgressGateway{Addresses: []string{"10.9.0.9"}}, v1alpha1.EgressGateway{UID: strings.Repeat("u", 65), Addresses: []string{"10.9.0.8"}})
		}, []string{`status.gateways[1].uid is "gw-0001", expected a UID that no other gateway has`}, false, []string{"gw-0001"}},
		"two with one address": {func(o *v1alpha1.Egress) {
			o.Status.Gateways = append([]v1alpha1.EgressGateway{{UID: "old", Addresses: o.Status.Gateways[0].Addresses, Ending: true}}, o.Status.Gateways...)
		}, []string{"status.gateways[0].addresses has 10.9.0.2, which another gateway has"}, false, []string{"gw-0001"}},
		"5,000 gateways": {func(o *v1alpha1.Egress) {
			for i := range 5000 {
				o.Status.Gateways = append(o.Status.Gateways, v1alpha1.EgressGateway{UID: fmt.Sprint(i), Addresses: []string{"10.9.0.2"}})
			}
		}, []string{"status.gateways has 5001 gateways, expected at most 1024", "and 1021 more"}, false, []string{"gw-0001"}},
		"Service": {func(o *v1alpha1.Egress) { o.Status.ServiceIPs = []string{"None", "10.96.0.1", "10.96.0.2"} }, []string{`status.serviceIPs[0] is "None"`, "status.serviceIPs has 3 addresses"}, false, []string{"gw-0001"}},
		"selector": {func(o *v1alpha1.Egress) {
			o.Spec.Clients = &v1alpha1.EgressClientSelector{PodSelector: &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{Key: "a", Operator: "Like"}}}}
		}, []string{"spec.clients.podSelector"}, false, []string{"gw-0001"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := object("nat", 1)
			tt.make(o)
			got := readEgress(o)
			for _, want := range tt.says {
				if got.err == nil || !strings.Contains(got.err.Error(), want) {
					t.Errorf("it says %v, not %s", got.err, want)
				}
			}
			if got.err != nil && len(got.err.Error()) > 1000 {
				t.Errorf("it says %d bytes", len(got.err.Error()))
			}
			var left []string
			for _, g := range got.gateways {
				left = append(left, g.uid)
			}
			if got.unusable != tt.unusable || !slices.Equal(left, tt.gateways) {
				t.Errorf("unusable %t, gateways %v", got.unusable, left)
			}
			b := newObserved("")
			b.putEgress(got)
			b.putEgress(readEgress(o))
			if n := len(b.effects.take().invalid); n != 1 {
				t.Errorf("it is logged %d times", n)
			}
			// The rest can be recorded.
			if e := planned("pod", nil, nil, got); !got.unusable {
				rec := record(1)
				rec.Egress = &e
				if _, err := rec.Encode(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestReadClient(t *testing.T) {
	o := &v1alpha1.EgressClient{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod1", UID: "c-1"},
		Spec: v1alpha1.EgressClientSpec{PodUID: "uid-1", Egresses: []v1alpha1.EgressReference{
			useNamed("other").ref(), useNamed("nat").ref(), {Namespace: "internet", Name: "nat", UID: "another"}, {Name: "nowhere", UID: "1"},
		}},
	}
	got := readClient(o)
	if !slices.Equal(got.uses, []use{useNamed("nat"), useNamed("other")}) || got.pod != "uid-1" || got.node != nil {
		t.Errorf("got %+v", got)
	}
}
