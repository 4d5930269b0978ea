// Package podevents writes Events on pods about their ADDs: that one
// waits and why, that it failed, and that the address came after all. `kubectl
// describe pod` shows them.
//
//	news.go    what the daemon reports, and the Event and text for it
//	remedy.go  what a person can do, by the cause
//	queue.go   which Event is written when, and which never (no I/O)
//	teller.go  accepts news at once and writes Events in the background
//
// A Teller never delays an ADD, and bounds its memory and its
// requests. It drops and counts what it cannot write:
// the kubelet retries a failed ADD, which makes the same news again.
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

// What berthd may do in the Kubernetes API in node mode: write Events and read none. An admission
// policy restricts it to Events of Pods that name its own node (templates/admission/podevents.yaml of
// the chart). The roles of the other modes include this one.
//
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../../deploy/chart/files/rbac/node/berthd

// News is the progress of the ADD of one interface of a pod, or a change of a running pod's network.
type News struct {
	Pod    attachment.Pod // as the runtime names it
	IfName string
	Kind   Kind
	// Cause is the reason as in metrics, such as subnet-full, and Message is for people. Both are
	// empty for an ADD that succeeded.
	Cause, Message string
	Addresses      []string // in CIDR form, of an ADD that succeeded
}

// subject is the interface that news is about.
type subject struct {
	pod    attachment.Pod
	ifName string
}

func (n News) subject() subject { return subject{n.Pod, n.IfName} }

// Kind is the kind of news.
type Kind int

// The kinds of news.
const (
	// WaitsForAddress: an ADD has waited for a while, as no address is free.
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
	// CutOff: a running pod's network is gone.
	CutOff
	// Restored: it is back.
	Restored
	// AddressShared: a running pod's address is in use elsewhere.
	AddressShared
)

// form is what an Event has from the kind of news.
type form struct {
	reason  string // a word in CamelCase
	action  string // what was attempted
	warning bool   // else Normal
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

// passing are causes of waits that usually resolve by themselves and need no Warning.
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

// maxCause bounds how much of a cause is shown, in bytes. Berth's own causes are shorter; in operator
// mode the cause comes from an object.
const maxCause = 64

// troubleNote is the note for a wait or a failure: what is wrong, then what to do. A long message is
// cut.
func troubleNote(n News) string {
	remedy, _ := RemedyOf(n.Cause)
	end := fmt.Sprintf(" [%s]", clip(plain(n.Cause), maxCause))
	if remedy.Do != "" {
		end += " " + remedy.Do
	}
	end += fmt.Sprintf(" (docs/troubleshoot.md, %q)", remedy.Heading)
	return clip(interfacePrefix(n.IfName)+plain(n.Message), maxNote-len(end)) + end
}

// resolvedNote is the note when an address came or the network is back, with the time since the first
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
// (Event.reportingInstance). Admission policies cut a node's name in the same way.
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
	Instance string // the node, as far as an Event can name it
	Warning  bool   // else Normal
	Reason   string
	Action   string
	Note     string
	First    time.Time // time of the first news
	Last     time.Time // and of the last
	Count    int       // of news
}

// Writer writes Events. Errors that wrap ErrFinal must not be retried, and ErrTaken needs another
// name; other errors are temporary, such as an API server that does not answer.
type Writer interface {
	// Create creates an Event.
	Create(ctx context.Context, e Event) error
	// Repeat updates count and time of an existing Event.
	Repeat(ctx context.Context, e Event) error
}

// ErrFinal: the API server rejects the Event for good.
var ErrFinal = errors.New("the API server refuses the Event")

// ErrTaken: an Event of that name exists already.
var ErrTaken = errors.New("there is an Event of that name")

func isFinal(err error) bool { return errors.Is(err, ErrFinal) }

// eventName returns a name from the node and a number. The character before the number is one that a
// name may end with.
func eventName(instance string, number int) string {
	return Controller + "." + instance + "x" + strconv.Itoa(number%slots)
}
