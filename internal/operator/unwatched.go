package operator

import (
	"context"
	"log/slog"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/berthnet/berth/internal/clock"
)

// sayAgain is between two lines about a kind that still cannot be watched.
const sayAgain = 5 * time.Minute

// What to do about a kind that cannot be watched. The error names the verb and the
// resource that a right is missing for.
var remedies = map[string]string{
	refuses: "upgrade the release, or apply ClusterRole and ClusterRoleBinding berth-operator of deploy/chart: someone changed or removed them",
	lacks:   "upgrade the release, or apply the definitions of kinds of deploy/chart: someone removed them",
}

// unwatched tells of kinds that a running operator cannot watch any more, and what to
// do. Client-go tries again about once a second, and has a line for each try.
type unwatched struct {
	log   *slog.Logger
	clock clock.Clock

	mu   sync.Mutex
	said map[string]said // guarded by mu: by kind, what was told last
}

type said struct {
	why string
	at  time.Time
}

func newUnwatched(log *slog.Logger, c clock.Clock) *unwatched {
	return &unwatched{log: log, clock: c, said: map[string]said{}}
}

// handle is for cache.Options.DefaultWatchErrorHandler.
func (u *unwatched) handle(ctx context.Context, r *toolscache.Reflector, err error) {
	if !u.tell(r.TypeDescription(), err) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
}

// tell logs an error of a kind that has a remedy: at first, when it is another one, and
// again each sayAgain. It is false for others, such as an API server that is away.
func (u *unwatched) tell(kind string, err error) bool {
	why := because(err)
	remedy, known := remedies[why]
	now := u.clock.Now()
	u.mu.Lock()
	last := u.said[kind]
	fresh := known && (last.why != why || now.Sub(last.at) >= sayAgain)
	if fresh {
		u.said[kind] = said{why, now}
	}
	u.mu.Unlock()
	if fresh {
		u.log.Warn("cannot watch a kind; what is known of it grows old", "kind", kind, "because", "the Kubernetes API "+why, "remedy", remedy, "error", err)
	}
	return known
}
