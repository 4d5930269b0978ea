package diagnose

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/node/introspect"
)

// recent is the maximum age of an event that still describes the present. The kubelet retries
// within a few minutes, which updates its event.
const recent = 5 * time.Minute

// noAddress is the prefix of the plugin's error when no address was available in time.
const noAddress = "no address for the pod: "

// speaker is the source of the last message about a pod's sandbox.
type speaker int

const (
	nobody  speaker = iota // recently
	berthd                 // an Event of berthd
	plugin                 // the plugin's error in an Event of the kubelet
	runtime                // another error in an Event of the kubelet
)

// waitingReasons are the reasons of berthd's Events about ADDs that wait for an address or
// for the node, or timed out waiting. Its other Events are about ADDs that failed or succeeded.
var waitingReasons = map[string]bool{"WaitingForAddress": true, "WaitingForNetwork": true, "NoAddress": true}

// saidOfSandbox returns the last message about the pod's sandbox, its source, and whether
// it is about an ADD that waits.
func saidOfSandbox(f Facts) (words string, by speaker, waits bool) {
	for i := len(f.Events) - 1; i >= 0; i-- {
		e := f.Events[i]
		if f.Now.Sub(EventTime(e)) > recent {
			continue
		}
		if cmp.Or(e.ReportingController, e.Source.Component) == "berthd" {
			if e.Reason == "AddressAssigned" {
				return "", nobody, false
			}
			return e.Message, berthd, waitingReasons[e.Reason]
		}
		if e.Reason != "FailedCreatePodSandBox" {
			continue
		}
		if _, after, ok := strings.Cut(e.Message, `plugin type="berth"`); ok {
			_, said, _ := strings.Cut(after, ": ")
			words, waits = strings.CutPrefix(said, noAddress)
			return words, plugin, waits
		}
		return e.Message, runtime, false
	}
	return "", nobody, false
}

// EventTime returns the time of an event's last occurrence.
func EventTime(e corev1.Event) time.Time {
	last := cmp.Or(e.EventTime.Time, e.FirstTimestamp.Time)
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	if e.LastTimestamp.After(last) {
		last = e.LastTimestamp.Time
	}
	return last
}

// refused diagnoses an ADD that failed for another reason than a missing address.
func refused(f Facts) *Diagnosis {
	said, by, waits := saidOfSandbox(f)
	if by == nobody || waits || isWaiting(f) {
		return nil
	}
	if by == runtime {
		return trouble(Refused, "The node's container runtime could not create the pod's sandbox: "+said,
			"If the message names another plugin, fix that plugin, or remove network configurations on the node that sort before Berth's.", seeSandbox)
	}
	return trouble(Refused, "The pod's ADD failed: "+said, "Fix what the message names; the kubelet retries.", seeSandbox)
}

func isWaiting(f Facts) bool { return f.View.Value != nil && len(f.View.Value.Waiting) > 0 }

// waiting diagnoses a pod whose ADD waits for an address, or timed out waiting for one.
func waiting(f Facts) *Diagnosis {
	said, _, waits := saidOfSandbox(f)
	if isWaiting(f) {
		why := whyShort(f)
		if waits { // the message is about this pod, so it is more specific
			why = said
		}
		why = cmp.Or(whyNow(f), why)
		since := f.View.Value.Waiting[0].Since
		return trouble(Waiting, fmt.Sprintf("The pod has waited for an address of node %s for %s: %s", f.Pod.Spec.NodeName,
			max(0, f.View.Value.Time.Sub(since)).Round(time.Second), cmp.Or(why, "one is being assigned")),
			"Nothing, if it takes seconds: addresses are being assigned. Otherwise fix what it names; the kubelet retries.", seeOf(f))
	}
	if !waits {
		return nil
	}
	return trouble(Waiting, "The pod did not get an address in time: "+said,
		"Fix what it names; the kubelet retries.", seeOf(f))
}

// whyNow returns the node's reason for the waiting ADD.
func whyNow(f Facts) string {
	for _, w := range f.View.Value.Waiting {
		switch {
		case w.Message != "" && w.Reason != "":
			return fmt.Sprintf("%s [%s]", w.Message, w.Reason) // the format of berthd's Events
		case w.Message != "":
			return w.Message
		}
	}
	return ""
}

// whyShort returns the node's reason for having no free address.
func whyShort(f Facts) string {
	doc := f.Document.Value
	if doc == nil {
		return ""
	}
	for _, c := range doc.Conditions {
		if c.Type == "AddressesAvailable" && c.Status != introspect.True && c.Message != "" {
			return c.Message
		}
	}
	return doc.LastError
}

func seeOf(f Facts) string {
	switch f.mode() {
	case OperatorMode:
		return seeOperator
	case PoolMode:
		return seePoolWaits
	default:
		return seeWaits
	}
}

// notAsked is the diagnosis if no check found a problem.
func notAsked(f Facts) *Diagnosis {
	text := fmt.Sprintf("The kubelet of node %s has not requested an address for the pod yet.", f.Pod.Spec.NodeName)
	if f.View.Value == nil {
		text = fmt.Sprintf("The pod has no address yet. Node %s could not be queried for the reason: %s", f.Pod.Spec.NodeName, cmp.Or(f.View.Unread, "it has no berthd"))
	}
	for i := len(f.Events) - 1; i >= 0; i-- {
		if e := f.Events[i]; e.Type == corev1.EventTypeWarning && f.Now.Sub(EventTime(e)) <= recent {
			text += fmt.Sprintf(" Its last warning is %s: %s", e.Reason, e.Message)
			break
		}
	}
	d := fine(NotAsked, text)
	d.Remedy = "Nothing, if the pod was just created. Otherwise check its events (kubectl describe pod): volumes and secrets come before the network."
	d.See = seeSandbox
	return d
}
