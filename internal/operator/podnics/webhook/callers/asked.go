package callers

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// errUnread is the answer before the configuration was read.
var errUnread = errors.New("it is not known yet about which namespaces the API server asks the webhook")

// asked is about which namespaces the webhooks are asked, as the configuration was last.
type asked struct {
	mu   sync.Mutex // guards all and tell
	all  map[string]answer
	tell []func()
}

// answer is that of one webhook.
type answer struct {
	namespaces []string
	err        error // why it may not be asked
}

func newAsked() *asked { return &asked{all: map[string]answer{}} }

// note takes in what is true of a webhook now, and tells of it if it is news.
func (a *asked) note(webhook string, namespaces []string, err error) {
	a.mu.Lock()
	before, known := a.all[webhook]
	a.all[webhook] = answer{namespaces, err}
	tell := a.tell
	a.mu.Unlock()
	if known && slices.Equal(before.namespaces, namespaces) && fmt.Sprint(before.err) == fmt.Sprint(err) {
		return
	}
	for _, f := range tell {
		f()
	}
}

// Changed registers what is told when another answer of Asked may be true. It is quick.
func (c *Controller) Changed(tell func()) {
	c.asked.mu.Lock()
	defer c.asked.mu.Unlock()
	c.asked.tell = append(c.asked.tell, tell)
}

// Asked is nil if the API server asks a webhook about pods of a namespace that are made;
// else it says why not.
func (c *Controller) Asked(webhook, namespace string) error {
	c.asked.mu.Lock()
	defer c.asked.mu.Unlock()
	switch a, known := c.asked.all[webhook]; {
	case !known:
		return errUnread
	case a.err != nil:
		return a.err
	case !slices.Contains(a.namespaces, namespace):
		return errUnread
	}
	return nil
}
