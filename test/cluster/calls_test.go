//go:build e2e

package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// underCalls lets do run while the Service is called from the client by its name and
// from the host outside by a node's port, and wants every call to be answered.
func (w *world) underCalls(t *testing.T, by string, do func()) {
	t.Helper()
	inside := len(w.callsInside(t))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var done sync.WaitGroup
	var outside int
	var failed []error
	url := w.nodeURL(t, by)
	done.Go(func() {
		for ctx.Err() == nil {
			one, end := context.WithTimeout(ctx, 5*time.Second)
			_, err := ns.Get(one, w.OutsidePath(), url)
			end()
			if ctx.Err() != nil {
				return // told to stop in the middle
			}
			if outside++; err != nil {
				failed = append(failed, err)
			}
			_ = poll.Pause(ctx, time.Now(), 50*time.Millisecond)
		}
	})
	do()
	stop()
	done.Wait()
	answers := w.callsInside(t)[inside:]
	for _, status := range answers {
		if !strings.HasPrefix(status, "200/") {
			failed = append(failed, fmt.Errorf("a call from the client: status %s", status))
		}
	}
	if len(failed) > 0 || outside == 0 || len(answers) == 0 {
		t.Errorf("%d of %d calls from outside and %d from a pod failed: want some of both and none failed: %v",
			len(failed), outside, len(answers), errors.Join(failed[:min(len(failed), 5)]...))
		return
	}
	t.Logf("%d calls from outside and %d from a pod, all answered", outside, len(answers))
}

// callsInside are the results of the client's calls from the first on.
func (w *world) callsInside(t *testing.T) (statuses []string) {
	t.Helper()
	harness.Eventually(t, soon, "read the client's calls", func() error {
		out, err := w.Kube.Kubectl(t.Context(), "exec", clientName, "--", "cat", callFile)
		statuses = strings.Fields(out)
		return err
	})
	return statuses
}

// churn makes and removes pods on both nodes while do runs. Every one becomes Ready,
// and no address is in two that are Ready at a time.
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

// comes makes a pod and waits until it is Ready.
func (w *world) comes(ctx context.Context, name, node string) (address string, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	if err := w.Kube.Client.Create(ctx, plainPod(name, node)); err != nil {
		return "", err
	}
	if err := poll.Until(ctx, func() error { return w.isReady(ctx, name) }); err != nil {
		return "", err
	}
	p := &corev1.Pod{}
	err = w.Kube.Client.Get(ctx, client.ObjectKey{Namespace: inDefault, Name: name}, p)
	return p.Status.PodIP, err
}

// goes removes a pod and waits until it is gone.
func (w *world) goes(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: inDefault, Name: name}}
	if err := w.Kube.Client.Delete(ctx, p); err != nil {
		return err
	}
	return poll.Until(ctx, func() error {
		err := w.Kube.Client.Get(ctx, client.ObjectKeyFromObject(p), p)
		if err == nil {
			return fmt.Errorf("pod %s is still there", name)
		}
		return client.IgnoreNotFound(err)
	})
}
