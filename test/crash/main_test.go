package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berth", "berthd", "berth-operator"))
}

// Short times, so that a run passes through many lives of an address.
const (
	cooling     = time.Second
	shrinkDelay = 300 * time.Millisecond
)

// patience is how long anything may take: it only ends what hangs.
const patience = 10 * time.Minute

// soakPatience is the same for all operations of a soak. One that lasts longer than
// soakLong, on a slow machine, makes do with two thirds of them.
const (
	soakPatience = 40 * time.Minute
	soakLong     = 12 * time.Minute
)

// leases are of operators while there is no trouble: a leader stays one, however
// busy the machine. One alone has nobody to follow it, and no Lease.
func leases(operators int) []string {
	if operators == 1 {
		return []string{"--leader-elect=false"}
	}
	return []string{"--lease-duration=60s", "--renew-deadline=50s", "--retry-period=300ms"}
}

// hasty are settings of operators, after any others, for times of trouble:
// another follows within seconds, also when a busy machine holds the leader up.
var hasty = []string{"--lease-duration=2s", "--renew-deadline=1500ms"}

// raise starts a lab of nodes that have addresses for nine pods on three ENIs.
func raise(t *testing.T, nodes int) *lab.Lab {
	return harness.Raise(t, lab.Options{
		Nodes: nodes, InstanceType: "t3.small",
		DaemonArgs: []string{
			"--warm-ip-target=2", "--minimum-ip-target=2", "--cni-chain=", "--log-level=debug",
			"--cooling-period=" + cooling.String(), "--shrink-delay=" + shrinkDelay.String(),
			"--listing-interval=2s", "--netns-grace=1s", "--repair-interval=1s", "--warm-wait=5s",
			"--settle-time=2s", "--orphan-age=3s", "--orphan-interval=1s",
		},
	})
}

// emptied waits until every node is back to the primary ENI alone.
func emptied(ctx context.Context, l *lab.Lab) error {
	return eventually(ctx, func() error {
		var errs []error
		books := l.Books()
		for _, n := range l.Nodes() {
			if enis := books.InstanceENIs(n.InstanceID); len(enis) != 1 {
				errs = append(errs, fmt.Errorf("%s has %d ENIs, expected the primary alone", n.Name, len(enis)))
			}
		}
		return errors.Join(errs...)
	})
}

// eventually tries until is returns nil, and returns its last error when ctx ends.
func eventually(ctx context.Context, is func() error) error {
	for {
		err := is()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond): // another process's edge
		}
	}
}
