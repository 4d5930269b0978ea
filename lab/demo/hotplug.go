package demo

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
)

// hotPlug gives a pod that runs a NIC and takes it away again.
func hotPlug(ctx context.Context, s *stage) (string, error) {
	pods, err := s.pods("pod2", "pod1")
	if err != nil {
		return "", err
	}
	asker, p := pods[0], pods[1]
	added := netip.MustParseAddr("192.168.0.77")
	mac, _, err := linkOf(p, "eth0")
	if err != nil {
		return "", err
	}
	annotate := func(nics string) error { return s.lab.Kube.AnnotatePod(ctx, p, v1alpha1.AnnotationNICs, nics) }
	began := time.Now()
	if err := annotate(fmt.Sprintf("[{}, {name: net1, subnet: subnet-1, ip: %s}]", added)); err != nil {
		return "", err
	}
	if err := reached(ctx, asker, added); err != nil {
		return "", err
	}
	answered := time.Since(began)
	var nic *v1alpha1.PodNIC
	err = until(ctx, "the PodNIC of net1 says that it is plugged", func() error {
		if nic, err = s.nicOf(ctx, p, "net1"); err == nil && !meta.IsStatusConditionTrue(nic.Status.Conditions, v1alpha1.ConditionPlugged) {
			err = fmt.Errorf("it says %+v", nic.Status.Conditions)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	began = time.Now()
	if err := annotate("[{}]"); err != nil {
		return "", err
	}
	err = until(ctx, "nothing is left of net1", func() error {
		if _, there, err := s.port(ctx, nic.Status.PortID); err != nil || there {
			return fmt.Errorf("its port %s is there: %v, %w", nic.Status.PortID, there, err)
		}
		if _, _, err := linkOf(p, "net1"); err == nil {
			return fmt.Errorf("pod %s has it still", p.Name)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	gone := time.Since(began)
	if now, _, err := linkOf(p, "eth0"); err != nil || now != mac {
		return "", fmt.Errorf("eth0 of pod %s had %s, has %s: %w", p.Name, mac, now, err)
	}
	if err := reached(ctx, asker, p.Addr()); err != nil {
		return "", err
	}
	return fmt.Sprintf("pod1 answers at %s %.1f s after its annotation says so, and has no net1 %.1f s after it does not", added, answered.Seconds(), gone.Seconds()), nil
}
