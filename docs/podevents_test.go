package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/source"
)

// Reasons of calls other than ADD, or of calls whose end causes no Event
// (silentEnds in internal/node/daemon).
var noEvent = []string{"cancelled", "deleted", "draining", "mismatch", "no-address-yet", "unknown"}

// Conditions of a NodeNetwork that are no problem of pods, and reasons of Nodes' and pools' events, for which no ADD waits.
var noTrouble = []string{
	"AsExpected", "TargetMet", "RoomToGrow", "AddressesAvailable", "NetworkHealed", "NetworkOverwritten", "Ready", "BlocksFree", "NoneWithheld", "BlockGiven", "SubnetsAccepted", "Bound", "Unplugged", "NotAllowed", "PolicyUnresolved", "Drifted",
}

// For every cause for which an ADD may wait or fail, the Event says what to do about it, and where to read more.
func TestEveryCauseHasRemedy(t *testing.T) {
	page := folder(t, "troubleshoot")
	word := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	var causes []string
	for reason, where := range readCode(t).reasons {
		switch {
		case slices.Contains(noEvent, reason) || slices.Contains(noTrouble, reason):
		case strings.Contains(where, "/operator/podnics/providers/"): // reasons of VPC objects
		case strings.Contains(where, "/operator/podnics/nicpolicy/"): // reasons of NICPolicies
		case strings.Contains(where, "/operator/egress/"): // reasons of Egresses and EgressClients; the daemon has its own
		case word.MatchString(reason) && (strings.Contains(where, "/daemon/") || strings.Contains(where, "/source/") || strings.Contains(where, "/node/nics/") || strings.Contains(where, "/node/podegress/") || strings.Contains(where, "/eni/plan/")):
			causes = append(causes, reason)
		case strings.Contains(where, "/operator/") && !word.MatchString(reason):
			causes = append(causes, source.ReasonOf(reason)) // reasons of the object or the request, which the daemon forwards
		}
	}
	for class := cloud.Unknown; !strings.HasPrefix(class.String(), "class("); class++ {
		if class != cloud.Bug && class != cloud.Gone {
			causes = append(causes, class.String())
		}
	}
	causes = append(causes, podevents.Busy)
	if len(causes) < 50 {
		t.Errorf("this test finds only %d causes in the code: %q", len(causes), causes)
	}
	for _, cause := range causes {
		remedy, known := podevents.RemedyOf(cause)
		if !known {
			t.Errorf("internal/node/podevents has no remedy for %s", cause)
		}
		name, heading, _ := strings.Cut(strings.TrimPrefix(remedy.See, "docs/"), ", ")
		if !strings.Contains(readPage(t, name), "# "+strings.Trim(heading, `"`)+"\n") {
			t.Errorf("%s has no heading %s, to which Events of %s refer", name, heading, cause)
		}
	}
	for _, reason := range podevents.Reasons() {
		if !strings.Contains(page, "| `"+reason+"` |") {
			t.Errorf("docs/troubleshoot does not explain Events with reason %s", reason)
		}
	}
}
