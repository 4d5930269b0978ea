package nicplan

import (
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// Kind is what a step does.
type Kind int

// The kinds.
const (
	Rest       Kind = iota // nothing, until something changes
	Keep                   // give the PodNIC its finalizer
	Claim                  // write into the PodNIC which pod has it
	Look                   // ask the provider what there is
	Take                   // take a warm port; if there is none, what follows is next
	Create                 // ask for a port
	Record                 // write the port's ID into the PodNIC
	Change                 // change the port (Step.Change)
	Delete                 // delete a port (Step.Port)
	Poll                   // ask the provider how the port does; the status is written first
	Forget                 // take the finalizer off
	Rename                 // choose another MAC address: a port that is not the NIC's has this one
	Impossible             // report that somebody has to change something (Step.Class, Step.Why)
)

var kindNames = [...]string{"rest", "keep", "claim", "look", "take", "create", "record", "change", "delete", "poll", "forget", "rename", "impossible"}

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

	// Waits says that the step is not to be done now, but decided on again after Wait; 0: when
	// something changes. A step of the kind Rest waits without saying so.
	Waits bool
	Wait  time.Duration
	// Quiet says that the status need not be written while it waits.
	Quiet bool
}

// Takes reports whether the step gives a port to a NIC of which recorded is the port so far (empty:
// none): it makes one, takes a warm one, or marks a user's.
func (s Step) Takes(recorded string) bool {
	marks := s.Kind == Change && s.Change.Device != nil && *s.Change.Device != ""
	return s.Kind == Create || s.Kind == Take || marks && s.Port != recorded
}

// Next is the next step of a NIC, and whether it is to wait.
func Next(d Desired, o Observed, c Constraints, a Attempts) Step {
	if c.Closed && !o.Kept {
		return Step{}.Deferred(0, d, c) // nothing starts for a VPC that may never open
	}
	if !d.Over && c.Claimed && o.Kept {
		return Step{Kind: Claim}
	}
	return paced(next(d, o, c.UsedBy), d, o, c, a)
}

// next is the next step, were there nothing to wait for. A Look that follows on a Look is for
// later.
func next(d Desired, o Observed, usedBy string) Step {
	if d.Over {
		return ending(d, o)
	}
	switch {
	case !o.Kept:
		return Step{Kind: Keep}
	case d.Port.NetworkID == "":
		return Step{Kind: Rest}
	case !o.Looked:
		return Step{Kind: Look}
	case len(o.Extra) > 0:
		return Step{Kind: Delete, Port: o.Extra[0]}
	case o.Port == nil && d.Given != "":
		return impossible(vpcport.PortGone, "there is no port %s", d.Given)
	case o.Port == nil && o.Stranger:
		return Step{Kind: Rename}
	case o.Port == nil && o.Collided:
		return Step{Kind: Look} // sooner or later it shows which port has the MAC address
	case o.Port == nil && o.Unclear && d.Port.MAC == nil && !d.Idempotent:
		return Step{Kind: Look} // the provider would create a second port
	case o.Port == nil:
		return Step{Kind: Create}
	}
	return withPort(d, o, usedBy)
}

// withPort is the next step of a NIC that is needed and has a port.
func withPort(d Desired, o Observed, usedBy string) Step {
	if s, owns := owning(d, o, usedBy); !owns {
		return s
	}
	p, host := o.Port, d.Port.Host
	moves := p.Host != host || p.Binding.Result == vpcport.BindingFailed && host != ""
	switch {
	case d.regrouped(p):
		return Step{Kind: Change, Port: p.ID, Change: vpcport.Change{Groups: d.Port.Groups}}
	case moves && d.Held && d.Leaving && p.Host != "" && p.Host != host:
		return Step{Kind: Rest} // its old node unplugs it first
	case moves:
		return Step{Kind: Change, Port: p.ID, Change: vpcport.Change{Host: &host}}
	case host != "" && p.Status != vpcport.StatusActive:
		return Step{Kind: Poll, Port: p.ID}
	}
	return Step{Kind: Rest}
}

// owning is the next step by which a port becomes the NIC's; owns tells that it is.
func owning(d Desired, o Observed, usedBy string) (s Step, owns bool) {
	p, device, owner := o.Port, d.Port.Device, vpcport.Owner
	switch {
	case d.Given != "" && !d.marked(p) && o.Recorded != p.ID && !slices.Contains(p.Tags, d.Tag): // first, as it discloses nothing about the port
		return impossible(vpcport.ReferenceGone, "port %s does not have the tag %s, expected one by which its owner gives it to the namespace", p.ID, d.Tag), false
	case p.NetworkID != d.Port.NetworkID:
		return impossible(vpcport.Invalid, "port %s is of network %s, expected one of %s", p.ID, p.NetworkID, d.Port.NetworkID), false
	case d.warm(p) && o.Recorded != p.ID:
		return Step{Kind: Record, Port: p.ID}, false // from then on no other NIC takes it
	case !d.marked(p) && !d.warm(p) && p.Device != "" && p.Device != device:
		if usedBy != "" {
			return impossible(vpcport.Conflict, "port %s is in use by PodNIC %s", p.ID, usedBy), false
		}
		return impossible(vpcport.Conflict, "port %s is in use by %q", p.ID, p.Device), false
	case !d.marked(p):
		return Step{Kind: Change, Port: p.ID, Change: vpcport.Change{Device: &device, Owner: &owner}}, false
	case o.Recorded != p.ID:
		return Step{Kind: Record, Port: p.ID}, false
	}
	return Step{}, true
}

// ending is the next step of a NIC that is not needed any more. Without the finalizer nothing was
// ever asked for.
func ending(d Desired, o Observed) Step {
	none := ""
	switch {
	case !o.Kept, d.Held:
		return Step{Kind: Rest}
	case !o.Looked:
		return Step{Kind: Look}
	case len(o.Extra) > 0:
		return Step{Kind: Delete, Port: o.Extra[0]}
	case o.Port == nil && o.Unclear && d.Given == "":
		return Step{Kind: Look} // it may still appear
	case o.Port == nil, d.lost(o.Port), d.Given != "" && !d.marked(o.Port) && o.Recorded != o.Port.ID: // never taken
		return Step{Kind: Forget}
	case d.Given == "":
		return Step{Kind: Delete, Port: o.Port.ID}
	}
	return Step{Kind: Change, Port: o.Port.ID, Change: vpcport.Change{Device: &none, Owner: &none, Host: &none}}
}

func impossible(class vpcport.Class, format string, args ...any) Step {
	return Step{Kind: Impossible, Class: class, Why: fmt.Sprintf(format, args...)}
}
