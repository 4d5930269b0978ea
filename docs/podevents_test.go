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

// Reasons of calls that are no ADD, or of whose end no pod is told
// (silentEnds in internal/node/daemon).
var noEvent = []string{"cancelled", "deleted", "draining", "mismatch", "no-address-yet", "unknown"}

// Conditions of a NodeNetwork that are no trouble, and reasons of Nodes' and pools'
// events, which no ADD waits for.
var noTrouble = []string{
	"AsExpected", "TargetMet", "RoomToGrow", "AddressesAvailable", "NetworkHealed", "NetworkOverwritten", "Ready", "BlocksFree", "NoneWithheld", "BlockGiven", "SubnetsAccepted", "Bound", "Unplugged", "NotAllowed", "PolicyUnresolved",
}

// Whatever an ADD can wait for or fail by, its Event says what to do about it, and
// where there is more.
func TestEveryCauseHasARemedy(t *testing.T) {
	page := readPage(t, "troubleshoot.md")
	word := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	var causes []string
	for reason, where := range readCode(t).reasons {
		switch {
		case slices.Contains(noEvent, reason) || slices.Contains(noTrouble, reason):
		case strings.Contains(where, "/operator/podnics/providers/"): // of VPC objects
		case strings.Contains(where, "/operator/podnics/nicpolicy/"): // of NICPolicies
		case strings.Contains(where, "/operator/egress/"): // of Egresses and EgressClients; the daemon has its own
		case word.MatchString(reason) && (strings.Contains(where, "/daemon/") || strings.Contains(where, "/source/") || strings.Contains(where, "/node/nics/") || strings.Contains(where, "/node/podegress/") || strings.Contains(where, "/eni/plan/")):
			causes = append(causes, reason)
		case strings.Contains(where, "/operator/") && !word.MatchString(reason):
			causes = append(causes, source.ReasonOf(reason)) // of the object or the request, which the daemon passes on
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
		if !strings.Contains(page, "## "+remedy.Heading+"\n") {
			t.Errorf("troubleshoot.md has no heading %q, which Events of %s name", remedy.Heading, cause)
		}
	}
	for _, reason := range podevents.Reasons() {
		if !strings.Contains(page, "| `"+reason+"` |") {
			t.Errorf("troubleshoot.md does not explain Events of the reason %s", reason)
		}
	}
}
