package warm

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

var _ = failpoint.Register("operator.warm.make.before", "operator.warm.make.after", "operator.warm.drop.before", "operator.warm.drop.after")

// NamePrefix begins the names of warm ports. The name of the VPC object follows.
const NamePrefix = "berth/warm/"

// callTimeout bounds a call, including its wait for its turn.
const callTimeout = 2 * time.Minute

// worker makes the calls of a pool.
type worker struct {
	*Pool
	calls sync.WaitGroup

	surveyMu  sync.Mutex      // guards surveying
	surveying map[string]bool // VPC objects by name
}

// round starts what is to be done now.
func (w *worker) round(ctx context.Context) {
	w.forgetGone()
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
	w.o.Metrics.keep(w.Ready())
}

// forgetGone drops VPC objects that do not exist any more. Their ports were deleted before.
func (p *Pool) forgetGone() {
	gone := map[string]bool{}
	p.edit(func() {
		for _, o := range p.ports {
			gone[o.uid] = true
		}
		for _, of := range []map[string]time.Time{p.found, p.again} {
			for uid := range of {
				gone[uid] = true
			}
		}
	})
	maps.DeleteFunc(gone, func(uid string, _ bool) bool { return p.o.Exists(uid) })
	p.edit(func() {
		maps.DeleteFunc(p.ports, func(_ string, o *stocked) bool { return gone[o.uid] && !o.deleting })
		for uid := range gone {
			delete(p.found, uid)
			delete(p.again, uid)
		}
	})
}

// look returns the VPCs and hosts that the pool has something of.
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

// bounded is the context of a call that nobody waits for. It outlasts ctx, so that the reply is not lost.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cloud.WithPriority(context.WithoutCancel(ctx), cloud.Ahead), callTimeout)
}

// make adds a port of a kind: one that was found, or a new one.
func (w *worker) make(ctx context.Context, d *demand, v VPC) {
	call, cancel := bounded(ctx)
	defer cancel()
	device := w.begin(d, v)
	found, err := w.find(call, d, v)
	var made vpcport.Port
	if err == nil && !found {
		n := w.asking(d)
		n.Device, n.Name = device, NamePrefix+d.kind.VPC
		made, err = w.create(call, v, n)
		w.o.Metrics.step(stepMake, err)
	}
	w.made(d, v, device, found, made, err)
	log := w.o.Logger.With("vpc", d.kind.VPC, "host", d.kind.Host, "subnets", d.kind.Subnets, "groups", d.kind.Groups)
	switch {
	case err != nil:
		log.Warn("creating a warm port failed, will try again", "err", err)
	case found:
		log.Info("found a warm port that can be used")
	case made.Host != d.kind.Host || made.Binding.Result != vpcport.Bound:
		log.Warn("a warm port could not be bound, and is deleted", "port", made.ID, "why", made.Binding.Why)
	default:
		log.Info("created a warm port", "port", made.ID)
	}
	if now, open := w.o.VPC(d.kind.VPC); made.ID != "" && (!open || now.Ending || now.UID != v.UID) {
		w.discard(ctx, made.ID, v)
	}
	w.wake.Set()
}

// begin chooses and remembers the device of a port that is to be created. It takes that of a port that a failed call
// may have created, if there is one, so that the provider creates no second port.
func (w *worker) begin(d *demand, v VPC) (device string) {
	device = vpcport.WarmDevice(w.o.Cluster, v.UID, rand.Text())
	w.edit(func() {
		if d.of != v.UID {
			d.of, d.unclear = v.UID, nil
		}
		if n := len(d.unclear); n > 0 {
			device, d.unclear = d.unclear[n-1], d.unclear[:n-1]
		}
		w.creating[device] = true
	})
	return device
}

// asking is what a demand's port is asked for with now.
func (w *worker) asking(d *demand) (n vpcport.NewPort) {
	w.edit(func() { n = d.request })
	return n
}

// made takes in the result of creating a port.
func (w *worker) made(d *demand, v VPC, device string, found bool, port vpcport.Port, err error) {
	now := w.o.Clock.Now()
	w.edit(func() {
		d.making--
		delete(w.creating, device)
		switch {
		case err != nil:
			fail(&d.failed, now, err)
			if d.of == v.UID && len(d.unclear) < most {
				d.unclear = append(d.unclear, device)
			}
		case found:
		case w.ports[port.ID] != nil && w.ports[port.ID].deleting:
		case port.Host == d.kind.Host && port.Binding.Result == vpcport.Bound:
			d.failed = retry.Backoff{}
			w.ports[port.ID] = &stocked{vpc: d.kind.VPC, uid: v.UID, port: port, kind: d.kind, since: now}
		default: // it cannot be used, and is deleted
			fail(&d.failed, now, nil)
			w.ports[port.ID] = &stocked{vpc: d.kind.VPC, uid: v.UID, port: port, since: now, doomed: true}
		}
	})
}

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

// discard deletes a port of a VPC object that was deleted while the port was created. It tries until the port is gone or
// ctx ends, as nobody looks for it after that.
func (w *worker) discard(ctx context.Context, id string, v VPC) {
	w.edit(func() { delete(w.ports, id) })
	_ = retry.Until(ctx, w.o.Clock, retry.Policy{First: firstAgain, Most: lastAgain}, func(ctx context.Context) error {
		ctx, cancel := bounded(ctx)
		defer cancel()
		err := v.Provider.Delete(ctx, id)
		w.o.Metrics.step(stepDelete, err)
		if err != nil {
			w.o.Logger.Warn("deleting a warm port whose VPC was deleted failed, will try again", "port", id, "err", err)
			return err
		}
		w.o.Logger.Info("deleted a warm port whose VPC was deleted", "port", id)
		return nil
	})
}

// drop deletes a port that is marked as deleting.
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
			o.deleting = false
			o.again.Fail(now, firstAgain, lastAgain)
		}
	})
	if err != nil {
		w.o.Logger.Warn("deleting a warm port failed, will try again", "vpc", o.vpc, "port", id, "err", err)
	} else {
		w.o.Logger.Info("deleted a warm port", "vpc", o.vpc, "port", id, "host", o.port.Host)
		w.o.Freed(o.vpc)
	}
	w.wake.Set()
}

// edit has do read and change the pool.
func (p *Pool) edit(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}
