//go:build e2e

package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab/run/poll"
)

// underCalls calls do while the Service is called, and wants every call to be answered.
func (w *world) underCalls(t *testing.T, do func()) {
	t.Helper()
	figures, err := w.web.UnderCalls(t.Context(), brokenNode, do)
	if err != nil {
		t.Error(err)
	}
	t.Log(figures)
}

// churn creates and deletes pods on both nodes while do runs. Each becomes Ready, and no two Ready pods share an
// address.
func (w *world) churn(t *testing.T, do func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers errgroup.Group
	var holders sync.Map // Ready pods by address
	var count atomic.Int64
	for i, node := range []string{calmNode, brokenNode, calmNode, brokenNode} {
		workers.Go(func() error {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("churn-%d-%d", i, n)
				address, err := w.comes(t.Context(), name, node)
				if err != nil {
					return err
				}
				if other, taken := holders.LoadOrStore(address, name); taken {
					return fmt.Errorf("%s is the address of %s and %s", address, other, name)
				}
				count.Add(1)
				holders.Delete(address) // before another pod can get it
				if err := w.goes(t.Context(), name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	do()
	stop()
	if err := workers.Wait(); err != nil || count.Load() < 4 {
		t.Errorf("%d pods came and went meanwhile: %v", count.Load(), err)
	}
}

// comes creates a pod and waits until it is Ready.
func (w *world) comes(ctx context.Context, name, node string) (address string, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	if err := w.Kube.Client.Create(ctx, plainPod(name, node)); err != nil {
		return "", err
	}
	if err := poll.Until(ctx, func() error { return w.isReady(ctx, inDefault, name) }); err != nil {
		return "", err
	}
	p := &corev1.Pod{}
	err = w.Kube.Client.Get(ctx, client.ObjectKey{Namespace: inDefault, Name: name}, p)
	return p.Status.PodIP, err
}

// goes deletes a pod and waits until it is gone.
func (w *world) goes(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: name}}
	if err := w.Kube.Client.Delete(ctx, p); err != nil {
		return client.IgnoreNotFound(err)
	}
	return poll.Until(ctx, func() error {
		err := w.Kube.Client.Get(ctx, client.ObjectKeyFromObject(p), p)
		if err == nil {
			return fmt.Errorf("pod %s is still there", name)
		}
		return client.IgnoreNotFound(err)
	})
}
