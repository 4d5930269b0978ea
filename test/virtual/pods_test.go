package virtual

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/rpc"
)

// pods are the pods of a node, as seen by its runtime and kubelet.
type pods struct {
	node *node
	// object creates or deletes the Pod of a pod; nil without an API server.
	object func(name string, exists bool) error
	// describe adds the runtime's knowledge of a pod to an ADD; if nil, only its name is known.
	describe func(r *rpc.AddRequest) error
	cooling  time.Duration // cooling period of addresses
	// ready marks the Pod of a pod as ready, with addresses in CIDR form; may be nil.
	ready func(name string, addresses []string) error

	mu      sync.Mutex // guards all below
	made    int        // number of sandboxes so far
	live    map[string]sandbox
	owner   map[netip.Addr]string    // pod by address
	freed   map[netip.Addr]time.Time // start of its last DEL
	retries int                      // number of calls that failed or got no reply
}

// sandbox is the sandbox of a running pod.
type sandbox struct {
	number           int // number among the sandboxes of a node, from 1
	container, netns string
	addresses        []netip.Addr
}

func newPods(n *node) pods {
	return pods{node: n, cooling: cooling, live: map[string]sandbox{}, owner: map[netip.Addr]string{}, freed: map[netip.Addr]time.Time{}}
}

// patience is how long an operation is retried.
const patience = 10 * time.Minute

// callTimeout is how long a runtime waits for a plugin.
const callTimeout = time.Minute

// call calls the running daemon. A reply counts only if the daemon is still alive when it arrives.
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

// add adds a pod. After a call without a reply it retries for the same sandbox if its number is even; otherwise it
// creates another sandbox, like after a failure.
func (p *pods) add(name string) error {
	if p.object != nil {
		if err := p.object(name, true); err != nil {
			return err
		}
	}
	var s sandbox
	for begun := time.Now(); ; time.Sleep(time.Second) { //nolint:forbidigo // virtual time
		if s.container == "" {
			s = p.newSandbox(name)
		}
		var reply *rpc.AddReply
		req := &rpc.AddRequest{
			Attachment: &rpc.Attachment{Network: "berth", ContainerId: s.container, IfName: "eth0"}, Netns: s.netns,
			Pod: &rpc.Pod{Namespace: "default", Name: name, Uid: "uid-" + name},
		}
		if p.describe != nil {
			if err := p.describe(req); err != nil {
				return err
			}
		}
		err := p.call(func(ctx context.Context, client rpc.NodeClient) (err error) {
			reply, err = client.Add(ctx, req, grpc.WaitForReady(true))
			return err
		})
		if err == nil {
			if err := p.has(name, s, reply.GetAddresses()); err != nil || p.ready == nil {
				return err
			}
			return p.ready(name, reply.GetAddresses())
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

// has records a pod's addresses, which must have cooled down and have no other owner.
func (p *pods) has(name string, s sandbox, addresses []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(addresses) == 0 {
		return fmt.Errorf("pod %s: no address", name)
	}
	for _, text := range addresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("pod %s: %w", name, err)
		}
		a := prefix.Addr()
		if other, taken := p.owner[a]; taken {
			p.node.t.Errorf("%s was assigned to %s while %s has it", a, name, other)
		}
		if since, ok := p.freed[a]; ok && now.Sub(since) < p.cooling {
			p.node.t.Errorf("%s was assigned to %s %v after its release started, but cools for %v", a, name, now.Sub(since), p.cooling)
		}
		p.owner[a] = name
		s.addresses = append(s.addresses, a)
	}
	p.live[name] = s
	return nil
}

// del removes a pod. Its addresses may be reused as soon as DEL starts.
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
		return nil // it was never created
	}
	if err := p.remove(s); err != nil || p.object == nil {
		return err
	}
	return p.object(name, false)
}

// remove removes a sandbox, with retries.
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

// each calls do concurrently for the pods in the half-open range [from, to).
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
