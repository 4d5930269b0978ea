package neutronfake

import "time"

// trail is what listings show, which may be older than what there is.
type trail struct {
	shown map[string]Port
	later []trailed // oldest first
}

// trailed is a port as it was from a moment on; nil once it was gone.
type trailed struct {
	at   time.Time
	id   string
	port *Port
}

func (t *trail) add(at time.Time, id string, p *Port) { t.later = append(t.later, trailed{at, id, p}) }

// at is what a listing shows that is as old as a moment. Moments do not go back.
func (t *trail) at(moment time.Time) map[string]Port {
	n := 0
	for _, l := range t.later {
		if l.at.After(moment) {
			break
		}
		if n++; l.port == nil {
			delete(t.shown, l.id)
		} else {
			t.shown[l.id] = *l.port
		}
	}
	t.later = t.later[n:]
	return t.shown
}
