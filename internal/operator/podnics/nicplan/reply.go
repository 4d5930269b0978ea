package nicplan

import (
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// Reply is what came of a call that a step asked for.
type Reply struct {
	Port  *vpcport.Port  // of Create, Change and Poll
	Ports []vpcport.Port // of Look: all that may be the NIC's, or have its MAC address
	Began time.Time      // when the call began, of Look
	Err   error
}

// After is what is known of a NIC after a call. Of a Look, late says that it began so long after
// this operator did, and after the last call whose effect is unclear, that it shows all ports that
// were asked for before.
func (o Observed) After(d Desired, s Step, r Reply, late bool) Observed {
	switch {
	case r.Err != nil:
		return o.failed(s, vpcport.ClassOf(r.Err))
	case s.Kind == Look:
		return o.seen(d, r.Ports, late)
	}
	switch s.Kind {
	case Create, Change:
		o.Port, o.Looked, o.Unclear, o.Collided, o.Stranger = r.Port, true, false, false, false
	case Poll:
		if o.Port == nil || r.Port.Revision >= o.Port.Revision { // listings may trail
			o.Port = r.Port
		}
	case Delete:
		if o.Port != nil && o.Port.ID == s.Port {
			o.Port = nil
		}
		if len(o.Extra) > 0 && o.Extra[0] == s.Port {
			o.Extra = o.Extra[1:]
		}
	}
	return o
}

// failed is what is known after a call that failed. What the failure leaves unclear is to be
// looked at.
func (o Observed) failed(s Step, class vpcport.Class) Observed {
	o.Collided = o.Collided || class == vpcport.MACTaken
	o.Unclear = o.Unclear || s.Kind == Create && mayHaveMade(class)
	if vpcport.PolicyOf(class).Look {
		o.Looked = false
	}
	return o
}

// mayHaveMade reports whether a Create that failed may have made a port. Credentials that may make
// ports but not read them get Forbidden in answer to one that was made.
func mayHaveMade(c vpcport.Class) bool {
	switch c {
	case vpcport.Transient, vpcport.Unknown, vpcport.Bug, vpcport.Forbidden:
		return true
	}
	return false
}

// seen is what is known after a look that showed these ports: those with the NIC's device, and
// those with the MAC address that was refused. A recorded or given port is among them, or it is
// gone.
func (o Observed) seen(d Desired, ports []vpcport.Port, late bool) Observed {
	o.Unclear = o.Unclear && !late
	o.Looked, o.Stranger, o.Port, o.Extra = true, false, nil, nil
	var claimed []vpcport.Port
	for i, p := range ports {
		switch {
		case d.Given != "" && p.ID == d.Given:
			o.Port = &ports[i]
		case d.Given == "" && d.marked(&p), d.stripped(&p, o.Recorded), d.warm(&p) && p.ID == o.Recorded:
			claimed = append(claimed, p)
		case d.sameMAC(&p):
			o.Stranger = true
		}
	}
	if d.Given == "" {
		o.Port, o.Extra = Choose(claimed, o.Recorded)
	}
	if o.Port != nil {
		o.Collided, o.Unclear = false, false
	}
	return o
}

// Renamed is what is known after another MAC address was chosen.
func (o Observed) Renamed() Observed {
	o.Collided, o.Stranger = false, false
	return o
}
