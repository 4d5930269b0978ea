package virtual

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/rpc"
)

// pods are those of a node, as its runtime and kubelet see them.
type pods struct {
	node *node
	// object makes the Pod of a pod, or removes it; ready has its kubelet say that it is ready. Nil:
	// there is no API server.
	object func(name string, exists bool) (*corev1.Pod, error)
	ready  func(o *corev1.Pod, addresses []netip.Addr) error

	mu      sync.Mutex // guards all below
	made    int        // sandboxes so far
	live    map[string]sandbox
	owner   map[netip.Addr]string    // the pod
	freed   map[netip.Addr]time.Time // when its last DEL began
	retries int                      // of calls that failed or got no reply
}

// sandbox is one of a pod that runs.
type sandbox struct {
	number           int // of the sandboxes of a node, from 1
	container, netns string
	addresses        []netip.Addr
}

func newPods(n *node) pods {
	return pods{node: n, live: map[string]sandbox{}, owner: map[netip.Addr]string{}, freed: map[netip.Addr]time.Time{}}
}

// patience is how long an operation may be tried again.
const patience = 10 * time.Minute

// callTimeout is how long a runtime waits for a plugin.
const callTimeout = time.Minute

// call makes a call to the daemon that runs. A reply counts only if the daemon
// lives when it has arrived.
func (p *pods) call(do func(ctx context.Context, client rpc.NodeClient) error) error {
	w, client := p.node.daemon()
	ctx, cancel := context.WithTimeout(w.ctx, callTimeout)
	defer cancel()
	err := do(ctx, client)
	if halted := w.alive(); halted != nil {
		err = halted
	}
	if err != nil {
		p.mu.Lock()
		p.retries++
		p.mu.Unlock()
	}
	return err
}

// add makes a pod. A call that got no reply is made again for the same sandbox with even
// numbers; otherwise the sandbox is removed and another one made, as after a failure.
func (p *pods) add(name string) error {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	if p.object != nil {
		var err error
		if o, err = p.object(name, true); err != nil {
			return err
		}
	}
	var s sandbox
	for begun := time.Now(); ; time.Sleep(time.Second) { //nolint:forbidigo // virtual time
		if s.container == "" {
			s = p.newSandbox(name)
		}
		var reply *rpc.AddReply
		err := p.call(func(ctx context.Context, client rpc.NodeClient) (err error) {
			reply, err = client.Add(ctx, &rpc.AddRequest{
				Attachment: &rpc.Attachment{Network: "berth", ContainerId: s.container, IfName: "eth0"}, Netns: s.netns,
				Pod: &rpc.Pod{Namespace: o.Namespace, Name: name, Uid: string(o.UID)}, Annotations: &rpc.Annotations{All: o.Annotations},
			}, grpc.WaitForReady(true))
			return err
		})
		if err == nil {
			if s, err = p.has(name, s, reply.GetAddresses()); err == nil && p.ready != nil {
				err = p.ready(o, s.addresses)
			}
			return err
		}
		if time.Since(begun) > patience {
			return fmt.Errorf("pod %s: %w", name, err)
		}
		if errors.Is(err, errHalted) && s.number%2 == 0 {
			continue
		}
		if err := p.remove(s); err != nil {
			return err
		}
		s = sandbox{}
	}
}

func (p *pods) newSandbox(pod string) sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	container := fmt.Sprintf("%s-%d", pod, p.made)
	return sandbox{number: p.made, container: container, netns: p.node.kernel.AddNetns(container)}
}

// has notes a pod's addresses, which nobody else may have and which must have cooled.
func (p *pods) has(name string, s sandbox, addresses []string) (sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(addresses) == 0 {
		return s, fmt.Errorf("pod %s: no address", name)
	}
	for _, text := range addresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return s, fmt.Errorf("pod %s: %w", name, err)
		}
		a := prefix.Addr()
		if other, taken := p.owner[a]; taken {
			p.node.t.Errorf("%s was given to %s while %s has it", a, name, other)
		}
		if since, ok := p.freed[a]; ok && now.Sub(since) < cooling {
			p.node.t.Errorf("%s was given to %s %v after its release began, it cools for %v", a, name, now.Sub(since), cooling)
		}
		p.owner[a] = name
		s.addresses = append(s.addresses, a)
	}
	p.live[name] = s
	return s, nil
}

// del removes a pod. Its addresses are free from the moment that DEL begins.
func (p *pods) del(name string) error {
	p.mu.Lock()
	s := p.live[name]
	delete(p.live, name)
	for _, a := range s.addresses {
		delete(p.owner, a)
		p.freed[a] = time.Now()
	}
	p.mu.Unlock()
	if s.container == "" {
		return nil // it was never made
	}
	if err := p.remove(s); err != nil || p.object == nil {
		return err
	}
	_, err := p.object(name, false)
	return err
}

// remove removes a sandbox, with as many calls as it takes.
func (p *pods) remove(s sandbox) error {
	for begun := time.Now(); ; time.Sleep(time.Second) { //nolint:forbidigo // virtual time
		err := p.call(func(ctx context.Context, client rpc.NodeClient) error {
			_, err := client.Del(ctx, &rpc.DelRequest{Attachment: &rpc.Attachment{Network: "berth", ContainerId: s.container, IfName: "eth0"}}, grpc.WaitForReady(true))
			return err
		})
		if err == nil {
			p.node.kernel.RemoveNetns(s.netns)
			return nil
		}
		if time.Since(begun) > patience {
			return fmt.Errorf("remove the sandbox %s: %w", s.container, err)
		}
	}
}

// each does something for the pods from and up to, but not including, to, all at once.
func (p *pods) each(from, to int, do func(name string) error) {
	p.node.t.Helper()
	var wg sync.WaitGroup
	for i := from; i < to; i++ {
		wg.Go(func() {
			if err := do(fmt.Sprintf("pod-%d", i)); err != nil {
				p.node.t.Error(err)
			}
		})
	}
	wg.Wait()
}
