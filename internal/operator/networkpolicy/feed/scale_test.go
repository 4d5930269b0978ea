package feed

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/internal/policy/wire"
)

func TestScale(t *testing.T) {
	if os.Getenv("SCALE") == "" {
		t.Skip()
	}
	for _, nodes := range []int{100, 2000} {
		for _, all := range []bool{false, true} {
			pods, spaces := nodes*80, nodes/2
			var m0, m1 runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m0)
			f := New()
			pod := func(i int) resolve.Pod {
				return resolve.Pod{NamespacedName: types.NamespacedName{Namespace: fmt.Sprint("ns", i%spaces), Name: fmt.Sprint("pod", i)}, UID: types.UID(fmt.Sprint("u", i)),
					Node: fmt.Sprint("node", (i*7919)%nodes), Labels: map[string]string{"app": fmt.Sprint("app", i/spaces%4)}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}}
			}
			start := time.Now()
			for i := range spaces {
				f.SetNamespace(fmt.Sprint("ns", i), map[string]string{"kubernetes.io/metadata.name": fmt.Sprint("ns", i)})
				p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i), Name: "p"}}
				p.Spec.PodSelector.MatchLabels = map[string]string{"app": "app0"}
				peer := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app1"}}}
				if all {
					peer = networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}
				}
				p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}}
				f.SetPolicy(compile.NetworkPolicy(p))
			}
			for i := range pods {
				f.SetPod(pod(i))
			}
			fill := time.Since(start)
			runtime.GC()
			runtime.ReadMemStats(&m1)
			var subs []*Subscriber
			start = time.Now()
			bytes := 0
			for i := range nodes {
				s := f.Subscribe(fmt.Sprint("node", i))
				u := s.Next()
				if i < 20 {
					for _, p := range wire.Encode(u) {
						bytes += proto.Size(p)
					}
				}
				subs = append(subs, s)
			}
			sub := time.Since(start)
			// events, 20 ms apart at 50 a second: one each, then all take
			const events = 200
			start = time.Now()
			sent, updates := 0, 0
			for i := range events {
				p := pod(i * 97)
				f.DeletePod(p.NamespacedName)
				f.SetPod(p)
				for _, s := range subs {
					select {
					case <-s.Ready():
						u := s.Next()
						if u.Version > 0 {
							updates++
							for _, part := range wire.Encode(u) {
								sent += proto.Size(part)
							}
						}
					default:
					}
				}
			}
			per := time.Since(start) / events
			fmt.Printf("nodes %d pods %d policies %d all=%t: fill %s, heap %d MiB, subscribe all %s, %d KB a node whole, event %s, %.1f updates and %d bytes an event\n",
				nodes, pods, spaces, all, fill, (m1.HeapAlloc-m0.HeapAlloc)>>20, sub, bytes/20/1000, per, float64(updates)/events, sent/events)
			_ = policy.Ref{}
		}
	}
}
