package podevents

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
)

// Controller reports the Events (events.k8s.io/v1, Event.reportingController).
const Controller = "berthd"

// maxInstance is how long the name of who reports may be, in bytes
// (Event.reportingInstance). Admission policies cut a node's name likewise.
const maxInstance = 128

// slots is how many Events of a node there may be in a namespace at a time: an Event is named after its
// node and one of these. API servers keep Events for an hour by default (--event-ttl). An admission policy
// lets berthd make no other name (templates/admission/podevents.yaml of the chart), so that a stolen token
// cannot fill etcd with Events.
const slots = 256

// Event is one of events.k8s.io/v1, regarding a Pod.
type Event struct {
	Pod      attachment.Pod
	Name     string // in the Pod's namespace
	Instance string // the node, as far as an Event can name it
	Warning  bool   // else Normal
	Reason   string
	Action   string
	Note     string
	First    time.Time // when the news came first
	Last     time.Time // and last
	Count    int       // how often
}

// Writer writes Events. An error that wraps ErrFinal is of an Event that is not
// to be tried again, ErrTaken of one that takes another name; any other, such as of an API server that does not answer, is
// nobody's fault.
type Writer interface {
	// Create makes an Event.
	Create(ctx context.Context, e Event) error
	// Repeat says of an Event that is there how often the news came, and when last.
	Repeat(ctx context.Context, e Event) error
}

// ErrFinal: the API server will never take this.
var ErrFinal = errors.New("the API server refuses the Event")

// ErrTaken: there is an Event of that name already.
var ErrTaken = errors.New("there is an Event of that name")

func isFinal(err error) bool { return errors.Is(err, ErrFinal) }

// eventName names an Event after its node, as far as an Event can name that, and a number. No character that a
// name may not end with is next to the number.
func eventName(instance string, number int) string {
	return Controller + "." + instance + "x" + strconv.Itoa(number%slots)
}
