// Package podevents tells Pods, by Events, what becomes of their ADDs: that one
// waits and why, that it failed, and that the address came after all. `kubectl
// describe pod` shows them.
//
//	news.go    what the daemon has to tell
//	kinds.go   the Event that each kind of news is
//	remedy.go  what a person can do, by the cause
//	note.go    the text
//	book.go    which news is written when, and which never (no I/O)
//	teller.go  the edge: takes news at once, writes Events by and by
//
// A Teller never makes an ADD wait, keeps a bounded number of small things, and
// makes a bounded number of requests. What it cannot write is dropped and counted:
// the kubelet tries a failed ADD again, and then there is news again.
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

// What berthd may do in the Kubernetes API of node mode: write Events and read
// none. An admission policy narrows it to those of Pods that name its own node
// (templates/admission/podevents.yaml of the chart). The sources of the other modes
// generate their roles with this one in it.
//
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../deploy/chart/files/rbac/node/berthd

// News is what became of the ADD of one interface of a pod, or of a pod that runs.
type News struct {
	Pod    attachment.Pod // as the runtime names it
	IfName string
	Kind   Kind
	// Cause is the reason as metrics have it, such as subnet-full, and Message
	// tells a person of it. Both are empty of an ADD that worked.
	Cause, Message string
	Addresses      []string // in CIDR form, of an ADD that worked
}

// subject is whom news is of.
type subject struct {
	pod    attachment.Pod
	ifName string
}

func (n News) subject() subject { return subject{n.Pod, n.IfName} }

// Kind is what kind of news it is.
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
	// Attached: an ADD worked.
	Attached
	// GatewayFull: a gateway of an Egress has no room for new connections.
	GatewayFull
	// CutOff: a running pod's network is gone.
	CutOff
	// Restored: it is back.
	Restored
	// AddressShared: something else has the address of a pod that runs.
	AddressShared
)

// What of an Event follows from the kind of news.
type form struct {
	reason  string // a word in CamelCase
	action  string // what was tried
	warning bool   // else Normal
}

// forms are the Events. Admission policies list the reasons (deploy).
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

// Reasons are those of all Events that a Teller writes, in order.
func Reasons() (reasons []string) {
	for _, f := range forms {
		reasons = append(reasons, f.reason)
	}
	slices.Sort(reasons)
	return reasons
}

// passing are causes of a wait that are over by themselves, usually: nobody is
// to be warned of them.
var passing = map[string]bool{"growing": true, "starting": true, "cooling": true, Busy: true}

// warns tells whether the Event of news is a Warning.
func warns(k Kind, cause string) bool {
	if k == WaitsForAddress || k == WaitsForNetwork {
		return !passing[cause]
	}
	return forms[k].warning
}

// maxNote is how long an Event's note may be, in bytes (events.k8s.io/v1, Event.note).
const maxNote = 1024

// maxCause is how much of a cause is shown, in bytes. Those of Berth's own are
// shorter; in operator mode the object has the word.
const maxCause = 64

// troubleNote tells of a wait or a failure: what is wrong, then what to do. The end
// of a long message gives way.
func troubleNote(n News) string {
	remedy, _ := RemedyOf(n.Cause)
	end := fmt.Sprintf(" [%s]", clip(plain(n.Cause), maxCause))
	if remedy.Do != "" {
		end += " " + remedy.Do
	}
	end += fmt.Sprintf(" (docs/troubleshoot.md, %q)", remedy.Heading)
	return clip(interfacePrefix(n.IfName)+plain(n.Message), maxNote-len(end)) + end
}

// resolvedNote tells that an address came, or the network is back, and how long after the
// first trouble.
func resolvedNote(n News, after time.Duration) string {
	what := "has " + strings.Join(n.Addresses, " and ")
	if n.Kind == Restored {
		what = "is connected again"
	}
	return clip(fmt.Sprintf("%s%s, %v after the first of these Events", interfacePrefix(n.IfName), what, after.Round(100*time.Millisecond)), maxNote)
}

// interfacePrefix names an interface unless it is the one that every pod has.
func interfacePrefix(name string) string {
	if name == "eth0" {
		return ""
	}
	return "interface " + plain(name) + ": "
}

// plain is a text on one line, without what a terminal would act on.
func plain(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar
	}), " ")
}

// clip shortens s to so many bytes, at a character.
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
