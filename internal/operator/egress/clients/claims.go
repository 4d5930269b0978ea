package clients

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/egress/clients/clientplan"
)

// isServed tells whether gateways serve a pod, and since when only its node says where; zero: its kubelet does, or neither.
type isServed func(key types.NamespacedName, uid string) (served bool, since time.Time)

// May tells whether the node of a pod may give it an address, as far as is known.
type May func(ctx context.Context, p *corev1.Pod, address netip.Addr) (bool, error)

// confirm finds out at which addresses gateways may serve a pod that has an EgressClient.
func (c *Controller) confirm(ctx context.Context, s *scene, served isServed) error {
	_, since := served(client.ObjectKeyFromObject(s.pod), string(s.pod.UID))
	says, has := said(s.o), addressesOf(s.pod)
	of := clientplan.Confirm(says, has, since, c.now())
	s.addresses, s.since = of.Addresses, of.Since
	if len(has) == 0 && c.o.May != nil {
		for _, address := range of.Addresses {
			may, err := c.o.May(ctx, s.pod, netip.MustParseAddr(address))
			if err != nil {
				return err
			}
			if !may {
				s.addresses, s.foreign = nil, true
				s.elsewhere = fmt.Sprintf("the node says that the pod sends from %s, which is none of the node's addresses for pods: gateways do not serve it before its status has it", address)
				break
			}
		}
	}
	if len(of.Elsewhere) > 0 {
		s.elsewhere = fmt.Sprintf("the node says that the pod sends from %s, which is not among the addresses of the pod's status (%s): gateways do not serve it there", strings.Join(of.Elsewhere, " and "), strings.Join(has, ", "))
	}
	return nil
}

// conflict tells whose one of the addresses is at which a pod is to be served, if it is
// not that pod's; empty: they are its own.
func (c *Controller) conflict(ctx context.Context, p *corev1.Pod, addresses []string, served isServed) (string, error) {
	mine := addressesOf(p)
	for _, address := range addresses {
		claims, err := c.claims(ctx, p, address, served)
		if err != nil {
			return "", err
		}
		if len(claims) == 0 {
			continue
		}
		me := claimOf(p, served)
		for _, a := range mine {
			me.Confirmed = me.Confirmed || a == address
		}
		if h := clientplan.Holder(append(claims, me)); h.UID != me.UID {
			return fmt.Sprintf("the node says that the pod sends from %s, which is the address of pod %s: gateways do not serve it there while that is so", address, h.Pod), nil
		}
	}
	return "", nil
}

// claims are other live pods that have an address, or whose nodes say so.
func (c *Controller) claims(ctx context.Context, p *corev1.Pod, address string, served isServed) ([]clientplan.Claim, error) {
	pods, others := &corev1.PodList{}, &v1alpha1.EgressClientList{}
	if err := c.client.List(ctx, pods, client.MatchingFields{byAddress: address}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods with address %s: %w", address, err)
	}
	if err := c.client.List(ctx, others, client.MatchingFields{byAddress: address}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list EgressClients with address %s: %w", address, err)
	}
	var claims []clientplan.Claim
	has := map[types.UID]bool{p.UID: true}
	for i := range pods.Items {
		if q := &pods.Items[i]; !has[q.UID] {
			has[q.UID] = true
			claim := claimOf(q, served)
			claim.Confirmed = true
			claims = append(claims, claim)
		}
	}
	for i := range others.Items {
		o := &others.Items[i]
		q := &corev1.Pod{}
		err := c.client.Get(ctx, client.ObjectKeyFromObject(o), q, client.UnsafeDisableDeepCopy)
		if err != nil || has[q.UID] || runtimeUID(q) != o.Spec.PodUID {
			continue
		}
		has[q.UID] = true
		s := scene{pod: q, o: o}
		if err := c.confirm(ctx, &s, served); err != nil {
			return nil, err
		}
		if slices.Contains(s.addresses, address) {
			claims = append(claims, claimOf(q, served))
		}
	}
	return claims, nil
}

func claimOf(p *corev1.Pod, served isServed) clientplan.Claim {
	key := client.ObjectKeyFromObject(p)
	is, _ := served(key, string(p.UID))
	return clientplan.Claim{UID: string(p.UID), Pod: key.String(), Served: is, Created: p.CreationTimestamp.Time}
}
