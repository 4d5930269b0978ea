//go:build e2e

package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab/run/poll"
)

// underCalls calls do while the Service is called, and wants every call to be answered.
func (w *world) underCalls(t *testing.T, by string, do func()) {
	t.Helper()
	figures, err := w.web.UnderCalls(t.Context(), by, do)
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
	var done sync.WaitGroup
	var mu sync.Mutex // guards what follows
	holders, count, errs := map[string]string{}, 0, []error(nil)
	for i, node := range []string{calmNode, brokenNode, calmNode, brokenNode} {
		done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("churn-%d-%d", i, n)
				address, err := w.comes(t.Context(), name, node)
				mu.Lock()
				if other := holders[address]; err == nil && other != "" {
					err = fmt.Errorf("%s is the address of %s and %s", address, other, name)
				}
				holders[address] = name
				count++
				mu.Unlock()
				if err == nil {
					// Before the address can be another's.
					mu.Lock()
					delete(holders, address)
					mu.Unlock()
					err = w.goes(t.Context(), name)
				}
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	do()
	stop()
	done.Wait()
	if len(errs) > 0 || count < 4 {
		t.Errorf("%d pods came and went meanwhile: %v", count, errors.Join(errs...))
		return
	}
	t.Logf("%d pods came and went meanwhile", count)
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
