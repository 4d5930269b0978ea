package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/part"
)

// sweepInterval is the interval of searches for attachments without a sandbox.
const sweepInterval = 15 * time.Second

// sweeper releases attachments for which no DEL will arrive.
type sweeper struct {
	attachments *attachments
	kernel      Kernel
	sandboxes   Sandboxes // may be nil
	grace       time.Duration

	mu    sync.Mutex                   // guards since
	since map[attachment.Key]time.Time // when namespaces were first missing
}

// run sweeps at an interval, until ctx ends.
func (s *sweeper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.attachments.clock.After(min(sweepInterval, max(s.grace/2, time.Second))):
			s.sweep(ctx)
		}
	}
}

// sweep finishes failed ADDs and DELs, and releases attachments whose network namespace has
// been missing for the grace period. A namespace may be invisible to this process only, which
// must not cost a pod its network. Therefore the runtime must not list the sandbox or, if it cannot be
// queried, the pod's link must be gone: the kernel removes it with the namespace.
func (s *sweeper) sweep(ctx context.Context) {
	var gone []attachment.Record
	for _, rec := range s.attachments.store.Records() {
		if rec.State != attachment.Ready {
			s.finish(ctx, rec)
			continue
		}
		alive, err := part.Alive(s.attachments.inspect, rec.Netns)
		missing := !alive && err == nil
		if s.absent(rec.Key, missing, s.attachments.clock.Now()) >= s.grace && missing {
			gone = append(gone, rec)
		}
	}
	s.forget()
	s.releaseGone(ctx, gone)
}

// finish retries failed operations, unless a call about the container is in progress, such as an ADD
// that waits for NICs.
func (s *sweeper) finish(ctx context.Context, rec attachment.Record) {
	if s.attachments.clock.Now().Sub(rec.Since) < kernelTimeout || s.attachments.reaper.has(rec.HostLink) {
		return // most likely in progress
	}
	unlock, ok := s.attachments.locks.try(rec.Key.ContainerID)
	if !ok {
		return
	}
	defer unlock()
	now, ok := s.attachments.store.Get(rec.Key)
	if !ok || now.State == attachment.Ready || !now.Since.Equal(rec.Since) {
		return
	}
	if err := s.attachments.clear(ctx, now); err != nil {
		s.attachments.log.Warn("finishing an incomplete attachment failed, will try again", "attachment", rec.Key.String(), "state", now.State, "err", err)
	}
}

// absent records whether a namespace is missing now, and returns for how long it has been.
func (s *sweeper) absent(key attachment.Key, missing bool, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !missing {
		delete(s.since, key)
		return 0
	}
	if _, known := s.since[key]; !known {
		s.since[key] = now
	}
	return now.Sub(s.since[key])
}

// forget drops attachments that no longer exist.
func (s *sweeper) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.since, func(key attachment.Key, _ time.Time) bool {
		_, ok := s.attachments.store.Get(key)
		return !ok
	})
}

// releaseGone releases those of the candidates, and of the damaged records, that are unknown to both the runtime and
// the kernel.
func (s *sweeper) releaseGone(ctx context.Context, gone []attachment.Record) {
	damaged := s.attachments.quarantine.all()
	if len(gone)+len(damaged) == 0 {
		return
	}
	inv, err := s.kernel.Inventory(ctx)
	if err != nil {
		s.attachments.log.Warn("listing the kernel's pod links failed", "err", err)
		return
	}
	inKernel := map[string]bool{}
	for _, l := range inv.Links {
		inKernel[l.Name] = true
	}
	listed := s.runtimeLists(ctx)
	for _, rec := range gone {
		// A pod without a lease has no link as evidence.
		if listed != nil && listed[rec.Key.ContainerID] || listed == nil && (inKernel[rec.HostLink] || rec.Lease.Empty()) {
			continue
		}
		if _, err := s.attachments.releaseIf(ctx, rec, "network namespace gone without a DEL"); err != nil {
			s.attachments.log.Warn("releasing an attachment whose namespace is gone failed", "attachment", rec.Key.String(), "err", err)
		}
	}
	if len(damaged) == 0 {
		return
	}
	plugs := s.attachments.quarantine.partLinks(ctx)
	for _, q := range damaged {
		if inKernel[q.HostLink] || slices.Contains(plugs, q.HostLink) {
			continue
		}
		if err := s.attachments.quarantine.release(ctx, q); err != nil {
			s.attachments.log.Warn("releasing the attachment of a damaged record failed", "file", q.File, "err", err)
		}
	}
}

// runtimeLists returns the sandboxes that the container runtime knows, or nil if none is configured
// or it does not respond.
func (s *sweeper) runtimeLists(ctx context.Context) map[string]bool {
	if s.sandboxes == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := s.sandboxes.Sandboxes(ctx)
	if err != nil {
		s.attachments.log.Warn("listing the container runtime's sandboxes failed", "err", err)
		return nil
	}
	return list
}

// Runtime is a container runtime behind its CRI socket.
type Runtime struct {
	conn   *grpc.ClientConn
	client runtime.RuntimeServiceClient
}

var _ Sandboxes = (*Runtime)(nil)

// NewRuntime returns the runtime at a unix socket. It connects on the first call.
func NewRuntime(socket string) (*Runtime, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20))) // the kubelet's own limit
	if err != nil {
		return nil, fmt.Errorf("the container runtime at %s: %w", socket, err)
	}
	return &Runtime{conn, runtime.NewRuntimeServiceClient(conn)}, nil
}

// Sandboxes implements Sandboxes: all sandboxes that the runtime has not removed, including stopped
// ones. A sandbox ID is CNI's container ID.
func (r *Runtime) Sandboxes(ctx context.Context) (map[string]bool, error) {
	reply, err := r.client.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing the runtime's sandboxes: %w", err)
	}
	ids := make(map[string]bool, len(reply.GetItems()))
	for _, s := range reply.GetItems() {
		ids[s.GetId()] = true
	}
	return ids, nil
}

// Close closes the connection.
func (r *Runtime) Close() error { return r.conn.Close() }
