package rollout

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/internal/clock"
)

// Cluster is what a run reads and changes.
type Cluster interface {
	// Observe reads the state past all caches.
	Observe(ctx context.Context) (State, error)
	// Do carries out an action. It is safe to repeat. A BlockedError means that others must act first.
	Do(ctx context.Context, a Action) error
}

// BlockedError is the error of an action that is temporarily rejected, such as an eviction by a PodDisruptionBudget.
type BlockedError struct{ Why string }

func (e *BlockedError) Error() string { return e.Why }

// interval is the time between two rounds without actions.
const interval = 2 * time.Second

// Patience is how long errors of the API server are tolerated.
const Patience = 5 * time.Minute

// propagation is how long a missing right is tolerated: an API server that has just started, or to which a right was just
// added, rejects requests for a few seconds.
const propagation = 15 * time.Second

// right is the text by which the API server names a right that a user lacks. It rejects requests for other reasons too, such as
// a ResourceQuota or a webhook, which may pass.
var right = regexp.MustCompile(`cannot [a-z]+ (resource|path) "`)

// Run moves nodes until nothing is left to do. It calls progress for every action and every new reason to wait. The
// error names the nodes that failed. A later run continues where this one ended.
func Run(ctx context.Context, c Cluster, from string, o Options, clk clock.Clock, progress func(node, what string)) error {
	o.Failed = map[string]string{}
	told := map[string]string{}
	tell := func(node, what string) {
		if what != "" && told[node] != what {
			told[node] = what
			progress(node, what)
		}
	}
	healthy := clk.Now()
	var forbidden time.Time // since when a right has been missing; zero: the last request was not rejected for one
	for {
		done, err := round(ctx, c, from, &o, tell)
		switch {
		case !apierrors.IsForbidden(err) || !right.MatchString(err.Error()):
			forbidden = time.Time{}
		case forbidden.IsZero():
			forbidden = clk.Now()
		}
		var refused *refusedError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &refused):
			return err
		case Untrusted(err) != nil:
			return Untrusted(err)
		case !forbidden.IsZero() && clk.Now().Sub(forbidden) >= propagation:
			return fmt.Errorf("a right has been missing for %s: give it to the user of the kubeconfig, and repeat the command, which continues: %w", propagation, err)
		case err == nil:
			healthy = clk.Now()
		case clk.Now().Sub(healthy) > Patience:
			return fmt.Errorf("failing for %s: %w", Patience, err)
		default:
			tell("", "will retry: "+err.Error())
		}
		if done {
			return failures(o.Failed)
		}
		select {
		case <-clk.After(interval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Untrusted explains an error about a certificate of the API server that does not verify. It returns nil for other errors,
// which may be those of an outage.
func Untrusted(err error) error {
	if _, is := errors.AsType[*tls.CertificateVerificationError](err); !is {
		return nil
	}
	return fmt.Errorf("the certificate of the API server does not verify: check server, certificate-authority and tls-server-name of the cluster in the kubeconfig, and this machine's clock: %w", err)
}

// refusedError is the reason why nothing is done.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return e.why }

// round observes and acts until it must wait.
func round(ctx context.Context, c Cluster, from string, o *Options, tell func(node, what string)) (done bool, err error) {
	for {
		s, err := c.Observe(ctx)
		if err != nil {
			return false, err
		}
		if o.ending && s.From == "" {
			return true, nil
		}
		d := Next(s, from, *o)
		if d.Refused != "" {
			return false, &refusedError{d.Refused}
		}
		acted := false
		for _, a := range d.Actions {
			o.ending = o.ending || a.Kind == End
			err := c.Do(ctx, a)
			if blocked := (*BlockedError)(nil); errors.As(err, &blocked) {
				tell(a.Node, "waits: "+blocked.Why)
				continue
			}
			if err != nil {
				return false, fmt.Errorf("%s: %w", strings.TrimSpace(string(a.Kind)+" "+a.Node), err)
			}
			acted = acted || a.Kind != Evict // an evicted pod needs time
			tell(a.Node, a.What)
			if a.Kind == End {
				return true, nil
			}
		}
		for _, w := range d.Waits {
			tell(w.Node, "waits for "+w.What)
		}
		for node, why := range d.Failed {
			o.Failed[node] = why
			tell(node, "failed: "+why)
			acted = true
		}
		if d.Done {
			maps.Copy(o.Failed, d.Skipped)
			return true, nil
		}
		if !acted {
			return false, nil
		}
	}
}

func failures(failed map[string]string) error {
	var errs []error
	for _, node := range slices.Sorted(maps.Keys(failed)) {
		errs = append(errs, fmt.Errorf("node %s: %s", node, failed[node]))
	}
	return errors.Join(errs...)
}
