package podevents

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/attachment"
)

// Controller reports the Events (events.k8s.io/v1, Event.reportingController).
const Controller = "berthd"

// maxInstance is how long the name of who reports may be, in bytes
// (Event.reportingInstance). Admission policies cut a node's name likewise.
const maxInstance = 128

// maxEventName is how long an object's name may be (RFC 1123 subdomain, as
// Kubernetes has it).
const maxEventName = 253

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
// to be tried again; any other, such as of an API server that does not answer, is
// nobody's fault.
type Writer interface {
	// Create makes an Event.
	Create(ctx context.Context, e Event) error
	// Repeat says of an Event that is there how often the news came, and when last.
	Repeat(ctx context.Context, e Event) error
}

// ErrFinal: the API server will never take this.
var ErrFinal = errors.New("the API server refuses the Event")

func isFinal(err error) bool { return errors.Is(err, ErrFinal) }

// eventName names an Event after its Pod and a number, as client-go does.
func eventName(pod string, number int64) string {
	suffix := "." + strconv.FormatInt(number, 16)
	if most := maxEventName - len(suffix); len(pod) > most {
		pod = strings.TrimRight(pod[:most], ".-")
	}
	return pod + suffix
}
