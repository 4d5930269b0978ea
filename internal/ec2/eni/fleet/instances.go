package fleet

import (
	"context"
	"sync"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// descriptions describes instances for all nodes.
type descriptions struct {
	asked gatherer[cloud.Instance] // by instance ID

	mu       sync.Mutex        // guards all below
	expected []string          // instances to describe for their first observation
	seen     map[string]bool   // all instances that were expected
	types    map[string]string // of described ones, until taken
	running  bool
	ended    bool // the first full listing has ended: nothing is expected any longer
}

// Instance implements eni.Lister.
func (o *observatory) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	a, err := o.instances.asked.ask(ctx, id, nil)
	if err == nil && a.value.ID == "" {
		err = &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances", Message: "unknown instance " + id}
	}
	return a.value, err
}

// FirstType implements eni.Lister. It may be as old as the first full listing.
func (o *observatory) FirstType(ctx context.Context, id string) (string, error) {
	if typ, ok := o.instances.take(id); ok {
		return typ, nil
	}
	in, err := o.Instance(ctx, id)
	return in.Type, err
}

// expect describes an instance, whose type is needed once the first full listing has ended, while that listing is made: in a
// large cluster, the descriptions of all instances take minutes, too. If one fails, its node asks itself.
func (d *descriptions) expect(id string) {
	d.mu.Lock()
	if d.ended || d.seen[id] {
		d.mu.Unlock()
		return
	}
	if d.seen == nil {
		d.seen, d.types = map[string]bool{}, map[string]string{}
	}
	d.seen[id], d.expected = true, append(d.expected, id)
	start := !d.running
	d.running = true
	d.mu.Unlock()
	if start {
		d.asked.spawn(d.describe)
	}
}

// describe describes the expected instances, after all other calls.
func (d *descriptions) describe(ctx context.Context) {
	ctx = cloud.WithPriority(ctx, cloud.Ahead)
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.asked.clock.After(d.asked.spacing):
		}
		d.mu.Lock()
		n := min(d.asked.most, len(d.expected))
		ids := d.expected[:n]
		d.expected = d.expected[n:]
		d.running = n > 0
		d.mu.Unlock()
		if n == 0 {
			return
		}
		found, err := d.asked.call(ctx, ids)
		if err != nil {
			continue
		}
		d.mu.Lock()
		for id, in := range found {
			if !d.ended {
				d.types[id] = in.Type
			}
		}
		d.mu.Unlock()
	}
}

// take returns the type of an expected instance, once.
func (d *descriptions) take(id string) (typ string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	typ = d.types[id]
	delete(d.types, id)
	return typ, typ != ""
}

// listed is called after each full listing. Nodes take the types after the first one; the next one drops those that nobody took.
func (d *descriptions) listed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		d.types = nil
	}
	d.ended, d.expected, d.seen = true, nil, nil
}
