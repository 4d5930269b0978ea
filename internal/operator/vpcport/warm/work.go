package warm

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

var _ = failpoint.Register("operator.warm.make.before", "operator.warm.make.after", "operator.warm.drop.before", "operator.warm.drop.after")

// NamePrefix begins the names of ports that were made for the pool. The VPC object's follows.
const NamePrefix = "berth/warm/"

// callTimeout bounds a call, with its wait for its turn.
const callTimeout = 2 * time.Minute

// worker makes the pool's calls.
type worker struct {
	*Pool
	calls sync.WaitGroup

	mu        sync.Mutex      // guards all below
	surveying map[string]bool // VPC objects by name
}

// round has done what is to be done now.
func (w *worker) round(ctx context.Context) {
	vpcs, nodes := w.look()
	open, room := map[string]VPC{}, map[string]int{}
	for _, name := range vpcs {
		if v, ok := w.o.VPC(name); ok {
			if w.yields(name) {
				v.Ports = 0
			}
			open[name] = v
			w.surveyFirst(ctx, name, v)
		}
	}
	for host, node := range nodes {
		room[host] = w.o.Most(ctx, node)
	}
	now := w.o.Clock.Now()
	todo := w.plan(now, room, open)
	for _, d := range todo.make {
		w.calls.Go(func() { w.make(ctx, d, open[d.kind.VPC]) })
	}
	for _, o := range todo.drop {
		w.calls.Go(func() { w.drop(ctx, o, open[o.vpc]) })
	}
	w.o.Metrics.keep(w.stocked())
}

// look is which VPCs and hosts there is something of.
func (p *Pool) look() (vpcs []string, nodes map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tidy(p.o.Clock.Now())
	has := map[string]bool{}
	for k := range p.demands {
		has[k.VPC] = true
	}
	for _, o := range p.ports {
		has[o.vpc] = true
	}
	for name := range has {
		vpcs = append(vpcs, name)
	}
	nodes = map[string]string{}
	for host, node := range p.nodes {
		nodes[host] = node
	}
	return vpcs, nodes
}

// bounded is the context of a call that nobody waits for. It outlasts ctx, so that its answer is heard.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cloud.WithPriority(context.WithoutCancel(ctx), cloud.Ahead), callTimeout)
}

// make adds a port of a kind: one that was found and is like that, else a new one.
func (w *worker) make(ctx context.Context, d *demand, v VPC) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	id := rand.Text()
	device := vpcport.WarmDevice(w.o.Cluster, v.UID, id)
	w.edit(func() { w.begun[device] = true })
	found, err := w.find(ctx, d, v)
	var made vpcport.Port
	if err == nil && !found {
		n := d.request
		n.Device, n.Name = device, NamePrefix+d.kind.VPC
		made, err = w.create(ctx, v, n)
		w.o.Metrics.step(stepMake, err)
	}
	now := w.o.Clock.Now()
	bound := err == nil && made.Host == d.kind.Host && made.Binding.Result == vpcport.Bound
	w.edit(func() {
		d.making--
		delete(w.begun, device)
		switch {
		case found:
		case bound:
			d.failed = failure{}
			w.ports[made.ID] = &stocked{vpc: d.kind.VPC, port: made, kind: d.kind, since: now}
		default:
			d.failed.fail(now, err)
			if err == nil { // it is of no use: it goes
				w.ports[made.ID] = &stocked{vpc: d.kind.VPC, port: made, since: now, spare: now.Add(-w.o.Keep)}
			}
		}
	})
	log := w.o.Logger.With("vpc", d.kind.VPC, "host", d.kind.Host, "subnets", d.kind.Subnets, "groups", d.kind.Groups)
	switch {
	case err != nil:
		log.Warn("no port could be made for the warm pool, will try again", "error", err)
	case !found && !bound:
		log.Warn("a port for the warm pool could not be bound, and is deleted", "port", made.ID, "why", made.Binding.Why)
	case !found:
		log.Info("port made for the warm pool", "port", made.ID)
		if now, open := w.o.VPC(d.kind.VPC); !open || now.Ending || now.UID != v.UID {
			w.deleteAtOnce(ctx, d.kind.VPC, made, v)
		}
	}
	w.wake.Set()
}

// create makes one port.
func (w *worker) create(ctx context.Context, v VPC, n vpcport.NewPort) (vpcport.Port, error) {
	var made []vpcport.Port
	err := failpoint.Around("operator.warm.make", func() (err error) {
		made, err = v.Provider.Create(ctx, []vpcport.NewPort{n})
		return err
	})
	switch {
	case err != nil:
		return vpcport.Port{}, err
	case len(made) != 1:
		return vpcport.Port{}, &vpcport.Error{Class: vpcport.Bug, Op: "create a port", Message: fmt.Sprintf("asked for one port, got %d", len(made))}
	}
	return made[0], nil
}

// deleteAtOnce deletes a port that was made for a VPC object which ended meanwhile: nobody
// looks for it after that.
func (w *worker) deleteAtOnce(ctx context.Context, vpc string, made vpcport.Port, v VPC) {
	mine := false
	w.edit(func() {
		o := w.ports[made.ID]
		if mine = o != nil && !o.going; mine {
			o.going = true
		}
	})
	if mine {
		w.drop(ctx, &stocked{vpc: vpc, port: made}, v)
	}
}

// drop deletes a port that is marked as going.
func (w *worker) drop(ctx context.Context, o *stocked, v VPC) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	id := o.port.ID
	err := failpoint.Around("operator.warm.drop", func() error { return v.Provider.Delete(ctx, id) })
	w.o.Metrics.step(stepDelete, err)
	now := w.o.Clock.Now()
	w.edit(func() {
		o := w.ports[id]
		switch {
		case o == nil:
		case err == nil:
			delete(w.ports, id)
		default:
			o.going = false
			o.until = now.Add(retry.Jitter(retry.Delay(firstAgain, lastAgain, o.tries)))
			o.tries++
		}
	})
	if err != nil {
		w.o.Logger.Warn("deleting a port of the warm pool, will try again", "vpc", o.vpc, "port", id, "error", err)
	} else {
		w.o.Logger.Info("port of the warm pool deleted", "vpc", o.vpc, "port", id, "host", o.port.Host)
		w.o.Freed(o.vpc)
	}
	w.wake.Set()
}

// edit changes what is known.
func (p *Pool) edit(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}
