package pace

import (
	"log/slog"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// DefaultCallTimeout is the CallTimeout of Options that name none.
const DefaultCallTimeout = 15 * time.Second

// Limit is a ceiling for the calls of one API action, in calls per second and
// calls at once. A zero field sets no limit.
type Limit struct {
	Rate  float64
	Burst int
}

// Options configure Cloud and NewSet. The zero value is right for EC2.
type Options struct {
	// CallTimeout bounds the time that one call takes on the wire and in its
	// repetitions, waiting for a limiter not counted; DefaultCallTimeout when 0.
	CallTimeout time.Duration
	// Ceilings limit the calls of an action, by its EC2 name, besides what is learned.
	Ceilings map[string]Limit
	// Peers: many processes like this one, such as the daemons of all nodes, draw
	// on the same buckets. They tell each other's refusals from those of clients
	// that do not yield by keeping quiet at the same times; see the package's
	// documentation. Their clocks should agree within 0.1 s, and not differ by more than 0.5 s.
	Peers bool
	// Observer is told of every call; may be nil.
	Observer Observer
	// Logger is silent when nil.
	Logger *slog.Logger
	// Clock is the machine's when nil.
	Clock clock.Clock
}

// Observer is told what is sent, for metrics. Its methods are called from many
// goroutines at once and must not block.
type Observer interface {
	// Call reports one request: the action, the cloud's error code and the time
	// to the reply. The code is CodeOK for success, and one of the other Code
	// constants when there was no reply to take a code from.
	Call(op, code string, d time.Duration)
	// Limited reports that a call of op was held back for d.
	Limited(op string, d time.Duration)
}

// Codes reported to an Observer where the cloud gave none.
const (
	CodeOK          = "OK"
	CodeNoReply     = "NoReply"        // time-out, or no connection
	CodeBadReply    = "MalformedReply" // an answer that the cloud would not give
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
