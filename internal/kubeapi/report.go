package kubeapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
)

// WatchDelay is how long the watch has to show a write before the write is repeated.
const WatchDelay = 2 * time.Second

// Report is a state that the status of an object is to have, and does not have yet.
type Report[S any] struct {
	Name    types.NamespacedName
	UID     types.UID
	Version string // the resourceVersion from which the report was derived
	State   S
}

// Reporter writes states into the status of objects until a watch shows them there. Nothing else is
// remembered of what is to be reported, so that a restart loses nothing. Of one object one report is in
// flight at a time, and each is conditional on the resourceVersion from which it was derived.
type Reporter[S any] struct {
	Clock  clock.Clock
	Log    *slog.Logger
	AtOnce int          // reports in flight at most
	Wake   retry.Signal // objects or states may have changed
	// Due lists the reports that the watched objects lack, in the order in which they are to be made.
	Due func(now time.Time) []Report[S]
	// Write makes one report.
	Write func(ctx context.Context, r Report[S]) error
}

// attempt is the last report of an object.
type attempt struct {
	version string // that of the report
	// superseded tells that the watch is to show another resourceVersion: that of the report, or of a write
	// that it conflicted with. Once it does there is nothing to wait for.
	superseded bool
	failed     bool
}

type reported[S any] struct {
	Report[S]
	err error
}

// Run reports until ctx ends, and returns when no report is in flight.
func (r *Reporter[S]) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var outage retry.Backoff // of the API server; a refusal delays reports of its own object only
	attempts := retry.NewInFlight[types.UID, attempt]()
	ended := make(chan reported[S], r.AtOnce)
	for ctx.Err() == nil {
		var due <-chan time.Time
		now := r.Clock.Now()
		start, next := []Report[S](nil), outage.Until
		if !outage.Until.After(now) {
			start, next = startable(r.Due(now), attempts, r.AtOnce, now)
		}
		if !next.IsZero() {
			due = r.Clock.After(next.Sub(now))
		}
		for _, one := range start {
			wg.Go(func() { ended <- reported[S]{one, r.Write(ctx, one)} })
		}
		select {
		case <-ctx.Done():
		case <-r.Wake:
		case <-due:
		case one := <-ended:
			now := r.Clock.Now()
			r.end(attempts.End(one.UID), one, now)
			switch {
			case one.err == nil:
				outage = retry.Backoff{}
			case apierrors.ReasonForError(one.err) == metav1.StatusReasonUnknown && !outage.Until.After(now): // no API server answered
				outage.Fail(now, retry.First, retry.Most)
			}
		}
	}
}

// startable selects the reports that may be made now, and marks them as in flight. next is when others may be
// made; zero: when something changes.
func startable[S any](list []Report[S], attempts retry.InFlight[types.UID, attempt], atOnce int, now time.Time) (start []Report[S], next time.Time) {
	wanted := map[types.UID]bool{}
	for _, one := range list {
		wanted[one.UID] = true
	}
	attempts.Retain(func(uid types.UID) bool { return wanted[uid] || attempts.Of(uid).Until.After(now) })
	running := attempts.Running(nil)
	for _, one := range list {
		if running == atOnce {
			break
		}
		a := attempts.Of(one.UID)
		if a.Value.superseded && a.Value.version != one.Version {
			a.Until = time.Time{}
		}
		started, at := attempts.Start(one.UID, now)
		if started == nil {
			next = retry.Earliest(now, next, at)
			continue
		}
		running++
		start = append(start, one)
	}
	return start, next
}

// end notes and logs the outcome of a report.
func (r *Reporter[S]) end(w *retry.Work[attempt], one reported[S], now time.Time) {
	first := one.err != nil && !w.Value.failed
	overtaken := apierrors.IsConflict(one.err) || apierrors.IsNotFound(one.err)
	w.Value = attempt{version: one.Version, superseded: one.err == nil || overtaken, failed: one.err != nil}
	log := r.Log.With("object", one.Name.String())
	switch {
	case one.err == nil:
		w.Backoff = retry.Backoff{Until: now.Add(WatchDelay)}
		log.Debug("status reported")
		return
	case Cancelled(one.err), overtaken:
		log.Debug("object changed while its status was reported", "err", one.err)
	case first:
		log.Warn("status not reported, will try again", "err", one.err)
	default:
		log.Debug("status not reported, will try again", "err", one.err)
	}
	w.Fail(now, retry.First, retry.Most)
}
