package providers

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/operator/podnics"
)

// NotReady is why a VPC is not open, for a person.
type NotReady struct{ Reason, Message string }

// Error gives the message.
func (n *NotReady) Error() string { return n.Message }

// networks are the open VPCs, for other controllers. It implements podnics.Networks.
type networks struct {
	mu      sync.Mutex // guards all below
	answers map[string]answer
	tell    []func(vpc string)
}

// answer is what Of returns of a VPC; with why, the VPC is not open.
type answer struct {
	opened podnics.Opened
	why    *NotReady
}

var _ podnics.Networks = (*networks)(nil)

func newNetworks() *networks { return &networks{answers: map[string]answer{}} }

// Of implements podnics.Networks.
func (n *networks) Of(name string) (podnics.Opened, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, ok := n.answers[name]
	switch {
	case !ok:
		return podnics.Opened{}, &NotReady{"VPCNotFound", fmt.Sprintf("no VPC %s, or none that was looked at yet", name)}
	case a.why != nil:
		return podnics.Opened{}, a.why
	}
	return a.opened, nil
}

// Changed implements podnics.Networks.
func (n *networks) Changed(tell func(vpc string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell = append(n.tell, tell)
}

// put sets the answer of a VPC; nil: there is no such VPC. If that changes it, those that registered by Changed
// are told.
func (n *networks) put(name string, a *answer) {
	for _, tell := range n.set(name, a) {
		tell(name)
	}
}

func (n *networks) set(name string, a *answer) []func(string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was, known := n.answers[name]
	switch {
	case a == nil && !known, a != nil && known && was.same(*a):
		return nil
	case a == nil:
		delete(n.answers, name)
	default:
		n.answers[name] = *a
	}
	return slices.Clone(n.tell)
}

// same tells whether two answers are equal.
func (a answer) same(o answer) bool {
	if a.why != nil || o.why != nil {
		return a.why != nil && o.why != nil && *a.why == *o.why
	}
	return a.opened.UID == o.opened.UID && a.opened.Provider == o.opened.Provider && reflect.DeepEqual(a.opened.Network, o.opened.Network) && reflect.DeepEqual(a.opened.Spec, o.opened.Spec)
}
