package nicplan

import "github.com/berthnet/berth/internal/vpcport"

// Replied is what is known after a call that a step asked for: the port that it
// returned, if any, or its error. What a failure leaves unclear is looked at.
func (h Have) Replied(s Step, port *vpcport.Port, err error) Have {
	if err != nil {
		class := vpcport.ClassOf(err)
		h.Collided = h.Collided || class == vpcport.MACTaken
		h.Unclear = h.Unclear || s.Kind == Create && mayHaveMade(class)
		if vpcport.PolicyOf(class).Look {
			h.Looked = false
		}
		return h
	}
	switch s.Kind {
	case Create, Change:
		h.Port, h.Looked, h.Unclear, h.Collided, h.Stranger = port, true, false, false, false
	case Delete:
		if h.Port != nil && h.Port.ID == s.Port {
			h.Port = nil
		}
		if len(h.Extra) > 0 && h.Extra[0] == s.Port {
			h.Extra = h.Extra[1:]
		}
	}
	return h
}

// mayHaveMade tells whether there may be a port after a Create that failed. Credentials
// that may make ports and not see them get the answer Forbidden to one that was made.
func mayHaveMade(c vpcport.Class) bool {
	switch c {
	case vpcport.Transient, vpcport.Unknown, vpcport.Bug, vpcport.Forbidden:
		return true
	}
	return false
}

// Seen is what is known after a look: the ports that the provider showed by the NIC's
// device, and by the MAC address that it refused. A port that is recorded or given is
// among them, or it is not there any more. Late tells that the look began so long after
// this process did, and after its last unclear call, that all that was asked for before
// shows.
func (h Have) Seen(w Want, ports []vpcport.Port, late bool) Have {
	h.Unclear = h.Unclear && !late
	h.Looked, h.Stranger, h.Port, h.Extra = true, false, nil, nil
	var claimed []vpcport.Port
	for i, p := range ports {
		switch {
		case w.Given != "" && p.ID == w.Given:
			h.Port = &ports[i]
		case w.Given == "" && w.mine(&p), w.stripped(&p, h.Recorded), w.warm(&p) && p.ID == h.Recorded:
			claimed = append(claimed, p)
		case w.sameMAC(&p):
			h.Stranger = true
		}
	}
	if w.Given == "" {
		h.Port, h.Extra = Choose(claimed, h.Recorded)
	}
	if h.Port != nil {
		h.Collided, h.Unclear = false, false
	}
	return h
}

// Renamed is what is known after another MAC address was chosen.
func (h Have) Renamed() Have {
	h.Collided, h.Stranger = false, false
	return h
}
