package nicplan

import (
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/vpcport"
)

// Kind is what a step does.
type Kind int

// The kinds.
const (
	Rest       Kind = iota // nothing, until something changes
	Keep                   // give the PodNIC its finalizer
	Look                   // ask the provider what there is
	Create                 // ask for a port
	Record                 // write the port's ID into the PodNIC
	Change                 // change the port (Step.Change)
	Delete                 // delete a port (Step.Port)
	Poll                   // ask the provider later how the port does
	Forget                 // take the finalizer off
	Rename                 // take another MAC address: the port that has this one is a stranger's
	Impossible             // somebody has to change something (Step.Class, Step.Why)
)

var kindNames = [...]string{"rest", "keep", "look", "create", "record", "change", "delete", "poll", "forget", "rename", "impossible"}

// String returns the kind as it appears in logs and metrics.
func (k Kind) String() string {
	if k >= 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", int(k))
}

// Step is one thing to do: at most one write, or one call.
type Step struct {
	Kind   Kind
	Port   string         // its ID, of Record, Change, Delete and Poll
	Change vpcport.Change // of Change
	Class  vpcport.Class  // of Impossible
	Why    string         // of Impossible, for a person
}

// Takes tells whether a port becomes a NIC's by the step, of which one is recorded (empty: none):
// it is made, or marked.
func (s Step) Takes(recorded string) bool {
	marks := s.Kind == Change && s.Change.Device != nil && *s.Change.Device != ""
	return s.Kind == Create || marks && s.Port != recorded
}

// Next is the next step for a NIC. A Look that follows on a Look is for later.
func Next(w Want, h Have) Step {
	if w.Over {
		return ending(w, h)
	}
	switch {
	case !h.Kept:
		return Step{Kind: Keep}
	case w.Network == "":
		return Step{Kind: Rest}
	case !h.Looked:
		return Step{Kind: Look}
	case len(h.Extra) > 0:
		return Step{Kind: Delete, Port: h.Extra[0]}
	case h.Port == nil && w.Given != "":
		return impossible(vpcport.PortGone, "there is no port %s", w.Given)
	case h.Port == nil && h.Stranger:
		return Step{Kind: Rename}
	case h.Port == nil && h.Collided:
		return Step{Kind: Look} // whose MAC address it is shows sooner or later
	case h.Port == nil && h.Unclear && w.MAC == nil && !w.Idempotent:
		return Step{Kind: Look} // nobody would refuse the second
	case h.Port == nil:
		return Step{Kind: Create}
	}
	return withPort(w, h)
}

// withPort is the next step for a NIC that is wanted and whose port there is.
func withPort(w Want, h Have) Step {
	if s, owns := owning(w, h); !owns {
		return s
	}
	p := h.Port
	moves := p.Host != w.Host || p.Binding.Result == vpcport.BindingFailed && w.Host != ""
	switch {
	case w.regrouped(p):
		return Step{Kind: Change, Port: p.ID, Change: vpcport.Change{Groups: w.Groups}}
	case moves && w.Held && w.Leaving && p.Host != "" && p.Host != w.Host:
		return Step{Kind: Rest} // its old node comes first
	case moves:
		return Step{Kind: Change, Port: p.ID, Change: vpcport.Change{Host: &w.Host}}
	case w.Host != "" && p.Status != vpcport.StatusActive:
		return Step{Kind: Poll, Port: p.ID}
	}
	return Step{Kind: Rest}
}

// owning is the next step by which a port becomes the NIC's; owns tells that it is.
func owning(w Want, h Have) (s Step, owns bool) {
	p, owner := h.Port, vpcport.Owner
	switch {
	case w.Given != "" && !w.mine(p) && h.Recorded != p.ID && !slices.Contains(p.Tags, w.Tag): // first, as it tells nothing of the port
		return impossible(vpcport.ReferenceGone, "port %s does not have the tag %s, expected one by which its owner gives it to the namespace", p.ID, w.Tag), false
	case p.NetworkID != w.Network:
		return impossible(vpcport.Invalid, "port %s is of network %s, expected one of %s", p.ID, p.NetworkID, w.Network), false
	case w.warm(p) && h.Recorded != p.ID:
		return Step{Kind: Record, Port: p.ID}, false // by which it is this NIC's and no other's
	case !w.mine(p) && !w.warm(p) && p.Device != "" && p.Device != w.Device:
		return impossible(vpcport.Conflict, "port %s is in use by %q", p.ID, p.Device), false
	case !w.mine(p):
		return Step{Kind: Change, Port: p.ID, Change: vpcport.Change{Device: &w.Device, Owner: &owner}}, false
	case h.Recorded != p.ID:
		return Step{Kind: Record, Port: p.ID}, false
	}
	return Step{}, true
}

// ending is the next step for a NIC that nobody needs. Without the finalizer nothing was
// ever asked for.
func ending(w Want, h Have) Step {
	none := ""
	switch {
	case !h.Kept, w.Held:
		return Step{Kind: Rest}
	case !h.Looked:
		return Step{Kind: Look}
	case len(h.Extra) > 0:
		return Step{Kind: Delete, Port: h.Extra[0]}
	case h.Port == nil && h.Unclear && w.Given == "":
		return Step{Kind: Look} // it may come yet
	case h.Port == nil, w.lost(h.Port), w.Given != "" && !w.mine(h.Port) && h.Recorded != h.Port.ID: // never taken
		return Step{Kind: Forget}
	case w.Given == "":
		return Step{Kind: Delete, Port: h.Port.ID}
	}
	return Step{Kind: Change, Port: h.Port.ID, Change: vpcport.Change{Device: &none, Owner: &none, Host: &none}}
}

func impossible(class vpcport.Class, format string, args ...any) Step {
	return Step{Kind: Impossible, Class: class, Why: fmt.Sprintf(format, args...)}
}
