package providers

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/operator/podnics"
)

// NotReady is why nothing is open of a VPC, for a person.
type NotReady struct{ Reason, Message string }

// Error gives the message.
func (n *NotReady) Error() string { return n.Message }

// book is what is open, for others. It implements vpcport.Networks.
type book struct {
	mu      sync.Mutex // guards all below
	answers map[string]answer
	tell    []func(vpc string)
}

// answer is one of Of's: with why it is of nothing that is open.
type answer struct {
	opened podnics.Opened
	why    *NotReady
}

var _ podnics.Networks = (*book)(nil)

func newBook() *book { return &book{answers: map[string]answer{}} }

// Of implements vpcport.Networks.
func (b *book) Of(name string) (podnics.Opened, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, ok := b.answers[name]
	switch {
	case !ok:
		return podnics.Opened{}, &NotReady{"VPCNotFound", fmt.Sprintf("no VPC %s, or none that was looked at yet", name)}
	case a.why != nil:
		return podnics.Opened{}, a.why
	}
	return a.opened, nil
}

// Changed implements vpcport.Networks.
func (b *book) Changed(tell func(vpc string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tell = append(b.tell, tell)
}

// put makes an answer that of a VPC; nil: there is no such VPC. Whoever wants to know is
// told if it is another than before.
func (b *book) put(name string, a *answer) {
	for _, tell := range b.set(name, a) {
		tell(name)
	}
}

func (b *book) set(name string, a *answer) []func(string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, known := b.answers[name]
	switch {
	case a == nil && !known, a != nil && known && was.same(*a):
		return nil
	case a == nil:
		delete(b.answers, name)
	default:
		b.answers[name] = *a
	}
	return slices.Clone(b.tell)
}

// same tells whether two answers say the same.
func (a answer) same(o answer) bool {
	if a.why != nil || o.why != nil {
		return a.why != nil && o.why != nil && *a.why == *o.why
	}
	return a.opened.UID == o.opened.UID && a.opened.Provider == o.opened.Provider && reflect.DeepEqual(a.opened.Network, o.opened.Network) && reflect.DeepEqual(a.opened.Spec, o.opened.Spec)
}
