package pace

import (
	"log/slog"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// DefaultCallTimeout is the default of Options.CallTimeout.
const DefaultCallTimeout = 15 * time.Second

// Limit is a ceiling for the calls of one action, in calls per second and calls in flight. A zero field
// means no limit.
type Limit struct {
	Rate  float64
	Burst int
}

// Options configure Cloud and NewSet. The zero value suits EC2.
type Options struct {
	// CallTimeout bounds a call with all its attempts, excluding the time in the limiter's queue;
	// DefaultCallTimeout if 0.
	CallTimeout time.Duration
	// Ceilings limit the calls of an action, by its EC2 name, in addition to the learned limits.
	Ceilings map[string]Limit
	// Peers means that many processes like this one, such as the daemons of all nodes, share the same buckets.
	// By slowing down at the same times, they find out whether clients that do not yield share the buckets, too;
	// see the package documentation. Their clocks should agree within 0.1 s, and must within 0.5 s.
	Peers bool
	// Observer observes every call; may be nil.
	Observer Observer
	// Logger discards everything if nil.
	Logger *slog.Logger
	// Clock is the system clock if nil.
	Clock clock.Clock
}

// Observer observes calls, for metrics. Its methods are called concurrently and must not block.
type Observer interface {
	// Call reports one request: the action, the cloud's error code and the time to the reply. The code is
	// CodeOK for success, and another of the Code constants if there was no valid reply.
	Call(op, code string, d time.Duration)
	// Limited reports that a call of op waited for d.
	Limited(op string, d time.Duration)
}

// Codes reported to an Observer if the cloud returned none.
const (
	CodeOK          = "OK"
	CodeNoReply     = "NoReply"        // timeout or no connection
	CodeBadReply    = "MalformedReply" // invalid reply
	CodeCredentials = "NoCredentials"  // nothing was sent
)

type ignore struct{}

func (ignore) Call(string, string, time.Duration) {}
func (ignore) Limited(string, time.Duration)      {}

func (o Options) withDefaults() Options {
	if o.CallTimeout <= 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	if o.Observer == nil {
		o.Observer = ignore{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	return o
}
