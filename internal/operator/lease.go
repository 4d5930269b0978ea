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

// LeaseName is the Lease that the leading operator holds.
const LeaseName = "berth-operator"

// lease is the Lease as the leader election uses it, and says what becomes of it.
type lease struct {
	resourcelock.Interface
	running context.Context // ends when the operator is asked to end
	cfg     config.Operator
	log     *slog.Logger
}

// newLease takes a name that no other process has, as the holder.
func newLease(ctx context.Context, c *rest.Config, cfg config.Operator, log *slog.Logger) (*lease, error) {
	c = rest.AddUserAgent(c, "leader-election")
	// One request that hangs must leave time for another.
	c.Timeout = max(cfg.RenewDeadline/2, time.Second)
	client, err := coordination.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make a client for the Lease: %w", err)
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

// The events of client-go's leader election.
const (
	becameLeader   = "became leader"
	stoppedLeading = "stopped leading"
)

// RecordEvent implements resourcelock.Interface.
func (l *lease) RecordEvent(event string) {
	switch {
	case event == becameLeader:
		l.log.Info("leading: nodes are this operator's now", "lease", l.Describe(), "holder", l.Identity())
	case event == stoppedLeading && l.running.Err() == nil:
		l.log.Error("lost the Lease: ending at once, as another operator may lead", "lease", l.Describe(),
			"renew-deadline", l.cfg.RenewDeadline)
	}
}
