// Package podevents writes Events on pods about their ADDs: that one waits and why, that it
// failed, and that it succeeded after all. `kubectl
// describe pod` shows them.
//
//	news.go    reports of the daemon, and their Events and texts
//	remedy.go  remedies, by cause
//	queue.go   which Event is written when, and which are dropped (no I/O)
//	teller.go  accepts reports without blocking and writes Events in the background
//
// A Teller never delays an ADD, and bounds its memory and its
// requests. It drops and counts Events that it cannot write:
// the kubelet retries a failed ADD, which causes the same Event again.
package podevents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berthnet/berth/internal/node/attachment"
)

// berthd's permissions in the Kubernetes API in node mode: write Events and read none. An admission
// policy restricts it to Events of Pods that name its own node (templates/admission/podevents.yaml of
// the chart). The roles of the other modes include this one.
//
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../../deploy/chart/files/rbac/node/berthd

// News is the progress of the ADD of one interface of a pod, or a change of a running pod's network.
type News struct {
	Pod    attachment.Pod // as reported by the runtime
	IfName string
	Kind   Kind
	// Cause is the reason as in metrics, such as subnet-full, and Message its description. Both are
	// empty for an ADD that succeeded.
	Cause, Message string
	Addresses      []string // in CIDR form, for an ADD that succeeded
}

// subject is the interface that news is about.
type subject struct {
	pod    attachment.Pod
	ifName string
}

func (n News) subject() subject { return subject{n.Pod, n.IfName} }

// Kind is the kind of a report.
type Kind int

// The kinds of reports.
const (
	// WaitsForAddress: an ADD has waited for a while because no address is free.
	WaitsForAddress Kind = iota
	// WaitsForNetwork: an ADD has waited for a while for something else.
	WaitsForNetwork
	// NoAddress: an ADD failed because no address became free.
	NoAddress
	// NetworkFailed: an ADD failed for another reason.
	NetworkFailed
	// Attached: an ADD succeeded.
	Attached
	// GatewayFull: a gateway of an Egress has no room for new connections.
	GatewayFull
	// CutOff: a running pod has lost its network.
	CutOff
	// Restored: a running pod has its network again.
	Restored
	// AddressShared: a running pod's address is in use elsewhere.
	AddressShared
)

// form holds the parts of an Event that the kind determines.
type form struct {
	reason  string // reason in CamelCase
	action  string // attempted action
	warning bool   // otherwise Normal
}

// forms are the Events. Admission policies list the reasons (package deploy).
var forms = map[Kind]form{
	WaitsForAddress: {"WaitingForAddress", "AssignAddress", true},
	WaitsForNetwork: {"WaitingForNetwork", "SetUpNetwork", true},
	NoAddress:       {"NoAddress", "AssignAddress", true},
	NetworkFailed:   {"NetworkNotSetUp", "SetUpNetwork", true},
	Attached:        {"AddressAssigned", "AssignAddress", false},
	GatewayFull:     {"ConnectionsFull", "ForwardPackets", true},
	CutOff:          {"NetworkLost", "ForwardPackets", true},
	Restored:        {"NetworkRestored", "ForwardPackets", false},
	AddressShared:   {"AddressShared", "AssignAddress", true},
}

// Reasons returns the reasons of all Events that a Teller writes, sorted.
func Reasons() (reasons []string) {
	for _, f := range forms {
		reasons = append(reasons, f.reason)
	}
	slices.Sort(reasons)
	return reasons
}

// passing are causes of waits that usually resolve by themselves and do not justify a Warning.
var passing = map[string]bool{"growing": true, "starting": true, "cooling": true, Busy: true}

// warns reports whether the Event is a Warning.
func warns(k Kind, cause string) bool {
	if k == WaitsForAddress || k == WaitsForNetwork {
		return !passing[cause]
	}
	return forms[k].warning
}

// maxNote is the maximum length of an Event's note, in bytes (events.k8s.io/v1, Event.note).
const maxNote = 1024

// maxCause bounds the part of a cause that is shown, in bytes. Berth's own causes are shorter; in operator
// mode the cause comes from an object.
const maxCause = 64

// troubleNote returns the note for a wait or a failure: the problem, then the remedy. A long message is
// truncated.
func troubleNote(n News) string {
	remedy, _ := RemedyOf(n.Cause)
	end := fmt.Sprintf(" [%s]", clip(plain(n.Cause), maxCause))
	if remedy.Do != "" {
		end += " " + remedy.Do
	}
	end += " (" + remedy.See + ")"
	return clip(interfacePrefix(n.IfName)+plain(n.Message), maxNote-len(end)) + end
}

// resolvedNote returns the note for an assigned address or a restored network, with the time since the first
// problem.
func resolvedNote(n News, after time.Duration) string {
	what := "has " + strings.Join(n.Addresses, " and ")
	if n.Kind == Restored {
		what = "is connected again"
	}
	return clip(fmt.Sprintf("%s%s, %v after the first of these Events", interfacePrefix(n.IfName), what, after.Round(100*time.Millisecond)), maxNote)
}

// interfacePrefix names the interface, except for eth0, which every pod has.
func interfacePrefix(name string) string {
	if name == "eth0" {
		return ""
	}
	return "interface " + plain(name) + ": "
}

// plain returns a text on one line without control characters.
func plain(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}), " ")
}

// clip shortens s to a number of bytes at a character boundary.
func clip(s string, most int) string {
	const ellipsis = "…"
	if len(s) <= most {
		return s
	}
	cut := max(0, most-len(ellipsis))
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}

// Controller is the name that reports the Events (events.k8s.io/v1, Event.reportingController).
const Controller = "berthd"

// maxInstance is the maximum length of the reporting instance's name, in bytes
// (Event.reportingInstance). Admission policies truncate a node's name in the same way.
const maxInstance = 128

// slots bounds the Events of a node in a namespace: an Event is named after its node and one of these
// numbers. API servers keep Events for an hour by default (--event-ttl). An admission policy rejects
// other names (templates/admission/podevents.yaml of the chart), so that a stolen token cannot fill
// etcd with Events.
const slots = 256

// Event is an Event of events.k8s.io/v1 about a Pod.
type Event struct {
	Pod      attachment.Pod
	Name     string // in the Pod's namespace
	Instance string // the node's name, possibly truncated
	Warning  bool   // otherwise Normal
	Reason   string
	Action   string
	Note     string
	First    time.Time // time of the first report
	Last     time.Time // time of the last report
	Count    int       // number of reports
}

// Writer writes Events. Errors that wrap ErrFinal must not be retried, and ErrTaken requires another
// name; other errors are temporary, such as an unreachable API server.
type Writer interface {
	// Create creates an Event.
	Create(ctx context.Context, e Event) error
	// Repeat updates the count and time of an existing Event.
	Repeat(ctx context.Context, e Event) error
}

// ErrFinal means that the API server rejects the Event permanently.
var ErrFinal = errors.New("the API server rejected the Event")

// ErrTaken means that an Event with that name already exists.
var ErrTaken = errors.New("an Event with that name already exists")

func isFinal(err error) bool { return errors.Is(err, ErrFinal) }

// eventName returns a name from the node and a number. The character before the number must be one that
// a name may end with.
func eventName(instance string, number int) string {
	return Controller + "." + instance + "x" + strconv.Itoa(number%slots)
}
