package operator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/berthnet/berth/internal/config"
)

// In addition to the permissions of its features, the operator needs those for leader election with a
// Lease in its own namespace.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=kube-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=kube-system,resources=leases,resourceNames=berth-operator,verbs=get;update

// LeaseName is the name of the Lease that the leading operator holds.
const LeaseName = "berth-operator"

// lease is the lock used for leader election. It logs the election's events.
type lease struct {
	resourcelock.Interface
	running context.Context // ends when the operator is told to stop
	cfg     config.Operator
	log     *slog.Logger
}

// newLease returns a lock whose holder identity is unique to this process.
func newLease(ctx context.Context, c *rest.Config, cfg config.Operator, log *slog.Logger) (*lease, error) {
	c = rest.AddUserAgent(rest.CopyConfig(c), "leader-election")
	// If a request hangs, there must be time for another one. Other requests may take longer: watches, and lists of many objects.
	c.Timeout = max(cfg.RenewDeadline/2, time.Second)
	client, err := coordination.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("create a client for the Lease: %w", err)
	}
	return &lease{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.LeaseNamespace, Name: LeaseName},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.PodName + "_" + string(uuid.NewUUID())},
		},
		running: ctx, cfg: cfg, log: log,
	}, nil
}

// Events of client-go's leader election.
const (
	becameLeader   = "became leader"
	stoppedLeading = "stopped leading"
)

// RecordEvent implements resourcelock.Interface.
func (l *lease) RecordEvent(event string) {
	switch {
	case event == becameLeader:
		l.log.Info("leading: this operator is the leader now", "lease", l.Describe(), "holder", l.Identity())
	case event == stoppedLeading && l.running.Err() == nil:
		l.log.Error("lost the Lease: exiting at once, as another operator may lead", "lease", l.Describe(),
			"renew-deadline", l.cfg.RenewDeadline)
	}
}

// afterStop is controller-runtime's message for an error that a part returns after the program was told
// to stop. The leader election then reports the Lease, which it has released, as lost.
const afterStop = "error received after stop sequence was engaged"

// quietStop is a handler for controller-runtime's log that reduces errors after the program was told to
// stop to debug messages.
type quietStop struct {
	slog.Handler
	running context.Context // ends when the program is told to stop
}

// Handle implements slog.Handler.
func (h quietStop) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == afterStop && h.running.Err() != nil {
		if r.Level = slog.LevelDebug; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h quietStop) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietStop{h.Handler.WithAttrs(attrs), h.running}
}

// WithGroup implements slog.Handler.
func (h quietStop) WithGroup(name string) slog.Handler {
	return quietStop{h.Handler.WithGroup(name), h.running}
}
