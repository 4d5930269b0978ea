//go:build guest && e2e

package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// liveEgress is an Egress that changes while pods run.
type liveEgress struct{ *egress }

const fouPort = 5555

// selected is a namespace whose pods the Egress may select.
func (s *liveEgress) selected() string { return s.key.Namespace + "-selected" }

// selects has the Egress select pods by their labels and those of their namespaces, and its gateways
// end soon.
func selects(e *v1alpha1.EgressSpec) {
	e.Clients = &v1alpha1.EgressClientSelector{
		NamespaceSelector: &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"team": "live"}},
		PodSelector:       &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"out": "gateway"}},
	}
	e.Template = &v1alpha1.EgressPodTemplate{Spec: &runtime.RawExtension{Raw: []byte(`{"terminationGracePeriodSeconds":5}`)}}
}

func (s *liveEgress) ctx() context.Context { return harness.Deadline(s.t, harness.Patience) }

// in is the Egress in a subtest.
func (s *liveEgress) in(t *testing.T) *liveEgress {
	of := *s.egress
	of.t = t
	return &liveEgress{&of}
}

func (s *liveEgress) read() *v1alpha1.Egress {
	s.t.Helper()
	e, err := s.lab.Kube.Egress(s.ctx(), s.key)
	harness.OK(s.t, err)
	return e
}

func (s *liveEgress) until(what string, is func() error) {
	s.t.Helper()
	began := time.Now()
	harness.Eventually(s.t, harness.Patience, what, is)
	s.t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
}

func (s *liveEgress) add(at int, name string, o node.PodOptions) *node.Pod {
	s.t.Helper()
	p, err := s.lab.Nodes()[at].AddPod(s.ctx(), name, o)
	harness.OK(s.t, err)
	return p
}

// seenAs is an error unless the outside sees a pod with one of some addresses.
func (s *liveEgress) seenAs(p *node.Pod, to netip.Addr, by []netip.Addr) error {
	for _, network := range []string{"tcp", "udp"} {
		as, err := seenAs(s.ctx(), p, network, to, answerWithin)
		if err != nil {
			return err
		}
		if !slices.Contains(by, as) {
			return fmt.Errorf("pod %s is seen as %s by %s, want one of %v", p.Name, as, to, by)
		}
	}
	return nil
}

// byGateways and asItself wait until a pod reaches hosts outside that way.
func (s *liveEgress) byGateways(p *node.Pod, to ...netip.Addr) {
	s.t.Helper()
	s.until(fmt.Sprintf("pod %s by a gateway to %v", p.Name, to), func() error {
		var errs []error
		for _, a := range to {
			errs = append(errs, s.seenAs(p, a, s.gatewayAddresses()))
		}
		return errors.Join(errs...)
	})
}

func (s *liveEgress) asItself(p *node.Pod, to ...netip.Addr) {
	s.t.Helper()
	s.until(fmt.Sprintf("pod %s as itself to %v", p.Name, to), func() error {
		var errs []error
		for _, a := range to {
			errs = append(errs, s.seenAs(p, a, p.Addrs))
		}
		return errors.Join(errs...)
	})
}

func (s *liveEgress) gatewayAddresses() (addrs []netip.Addr) {
	e := &v1alpha1.Egress{}
	if err := s.lab.Kube.Client.Get(s.ctx(), s.key, e); err != nil {
		return nil
	}
	for _, g := range e.Status.Gateways {
		for _, text := range g.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

// label sets a label of a pod or a namespace; an empty value removes it.
func (s *liveEgress) label(o client.Object, key, value string) {
	s.t.Helper()
	body := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if value == "" {
		body = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key)
	}
	harness.OK(s.t, s.lab.Kube.Client.Patch(s.ctx(), o, client.RawPatch(types.MergePatchType, []byte(body))))
}

// consents lets Egresses of a namespace select the pods.
func (s *liveEgress) consents(to string) {
	s.t.Helper()
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationEgressSelectableFrom, to)
	harness.OK(s.t, s.lab.Kube.Client.Patch(s.ctx(), namespaceOf(s.selected()), client.RawPatch(types.MergePatchType, []byte(body))))
}

// annotate sets the annotation of a running pod that names Egresses; none removes it.
func (s *liveEgress) annotate(p *node.Pod, names string) {
	s.t.Helper()
	key := v1alpha1.AnnotationEgressPrefix + s.key.Namespace
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, names)
	if names == "" {
		body = fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, key)
	}
	harness.OK(s.t, s.lab.Kube.Client.Patch(s.ctx(), podOf(p), client.RawPatch(types.MergePatchType, []byte(body))))
}

func podOf(p *node.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.ObjectName}}
}

func namespaceOf(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
