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
	expected []string          // instances whose types will be needed
	types    map[string]string // of described ones, until taken
	running  bool
}

// Instance implements eni.Lister.
func (o *observatory) Instance(ctx context.Context, id string) (cloud.Instance, error) {
	a, err := o.instances.asked.ask(ctx, id, nil)
	if err == nil && a.value.ID == "" {
		err = &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances", Message: "unknown instance " + id}
	}
	return a.value, err
}

// InstanceType implements eni.Lister. An instance keeps its type while it runs.
func (o *observatory) InstanceType(ctx context.Context, id string) (string, error) {
	if typ, ok := o.instances.take(id); ok {
		return typ, nil
	}
	in, err := o.Instance(ctx, id)
	return in.Type, err
}

// expect describes an instance whose type will be needed once the first full listing has ended. In a large cluster, the
// descriptions of all instances take minutes, too. If one fails, its node asks again.
func (d *descriptions) expect(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expected = append(d.expected, id)
	if !d.running {
		d.running = true
		d.asked.spawn(d.describe)
	}
}

// describe describes the expected instances, after the calls of nodes that wait.
func (d *descriptions) describe(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
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
		if d.types == nil {
			d.types = map[string]string{}
		}
		for id, in := range found {
			d.types[id] = in.Type
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
