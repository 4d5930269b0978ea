package nics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/none"
)

const (
	// lookEvery is the interval between health checks of Open vSwitch, and lookFor the timeout of one.
	lookEvery = 10 * time.Second
	lookFor   = 5 * time.Second
)

// The types of conditions.
const (
	conditionOVSDB   = "OVSDBReachable"
	conditionPodNICs = "PodNICsUsable"
)

// vswitch watches the node's Open vSwitch: whether it can be used, and which rows other software changes.
type vswitch struct {
	Switch
	bridges []string
	clock   clock.Clock
	log     *slog.Logger
	drift   *drift

	mu     sync.Mutex // guards health
	health health
}

// health is whether Open vSwitch can be used. The zero value says that this is not known yet.
type health struct {
	asked bool
	once  bool // it could be used before
	err   error
}

func (v *vswitch) state() health {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.health
}

// check keeps the health until ctx ends.
func (v *vswitch) check(ctx context.Context) {
	for ctx.Err() == nil {
		err := v.look(ctx)
		if ctx.Err() != nil {
			return
		}
		v.mu.Lock()
		before := v.health
		v.health = health{asked: true, once: before.once || err == nil, err: err}
		v.mu.Unlock()
		switch {
		case err != nil && (!before.asked || before.err == nil):
			v.log.Warn("Open vSwitch cannot be used; NICs that are plugged stay", "err", err)
		case err == nil && before.err != nil:
			v.log.Info("Open vSwitch can be used again")
		}
		select {
		case <-ctx.Done():
		case <-v.clock.After(lookEvery):
		}
	}
}

// look asks for the bridges. One of them is enough: each VPC of a node may have its own.
func (v *vswitch) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	var errs []error
	for _, bridge := range v.bridges {
		_, err := v.Bridge(ctx, bridge)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		if !errors.Is(err, plug.ErrNoBridge) {
			return err
		}
	}
	return errors.Join(errs...)
}

var errWatchEnded = errors.New("the watch of OVSDB ended")

// watch notes changes in OVSDB until ctx ends, and starts again after an error.
func (v *vswitch) watch(ctx context.Context) {
	_ = retry.Until(ctx, v.clock, retry.Policy{}, func(ctx context.Context) error { // it ends with ctx only
		v.Watch(ctx, func(changes []ovsdb.Change) {
			for _, c := range changes {
				if c.PortID == "" {
					v.drift.note()
				} else {
					v.drift.note(c.PortID)
				}
			}
		})
		return errWatchEnded
	})
}

// condition returns the node's condition; ok is false while nothing is known.
func (v *vswitch) condition() (c source.Condition, ok bool) {
	h := v.state()
	c = source.Condition{Type: conditionOVSDB, Healthy: h.err == nil, Reason: "Reachable"}
	if h.err != nil {
		c.Reason, c.Message = "Unreachable", h.err.Error()
		if errors.Is(h.err, plug.ErrNoBridge) {
			c.Reason = "NoBridge"
		}
	}
	return c, h.asked
}

// drift is the ports whose plugs other software may have changed. The daemon compares them with their records.
type drift struct {
	changed retry.Signal

	mu    sync.Mutex // guards all below
	all   bool       // any port
	ports map[string]bool
}

func newDrift() *drift { return &drift{changed: retry.NewSignal(), ports: map[string]bool{}} }

// note adds ports; without arguments, all ports.
func (d *drift) note(ports ...string) {
	d.mu.Lock()
	d.all = d.all || len(ports) == 0
	for _, p := range ports {
		d.ports[p] = true
	}
	d.mu.Unlock()
	d.changed.Set()
}

// Drifted has an element when other software may have changed something that is plugged.
func (d *drift) Drifted() <-chan struct{} { return d.changed }

// TakeDrift returns the ports whose plugs other software may have changed since the last call; all: any port.
func (d *drift) TakeDrift() (ports []string, all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ports, all = slices.Sorted(maps.Keys(d.ports)), d.all
	d.ports, d.all = map[string]bool{}, false
	return ports, all
}

// Ready is nil once PodNICs were listed and Open vSwitch could be used, now or before.
func (n *NICs) Ready() error {
	var ovs health
	if n.vswitch != nil {
		ovs = n.vswitch.state()
	}
	switch sync := n.observed.sync; {
	case !sync.Listed(podNICs, namespaces):
		if err := sync.Err(); err != nil {
			return fmt.Errorf("the API server has not listed this node's PodNICs yet: %w", err)
		}
		return errors.New("the API server has not listed this node's PodNICs yet")
	case n.vswitch == nil || ovs.once:
		return nil
	case ovs.err != nil:
		return fmt.Errorf("Open vSwitch cannot be used: %w", ovs.err)
	}
	return errors.New("Open vSwitch has not been asked yet")
}

// None is the source of addresses of a node whose pods have NICs only: it leases nothing, and is ready when they are.
type None struct {
	none.Source
	nics *NICs
}

// NewNone returns it.
func NewNone(nics *NICs) None { return None{nics: nics} }

// Ready implements source.Source.
func (n None) Ready() error { return n.nics.Ready() }

// conditions returns what prevents NICs from being plugged. n.mu is held.
func (n *NICs) conditions() (list []source.Condition) {
	if n.vswitch != nil {
		if c, ok := n.vswitch.condition(); ok {
			list = append(list, c)
		}
	}
	c := source.Condition{Type: conditionPodNICs, Healthy: true, Reason: "Usable"}
	var errs []string
	for _, o := range n.observed.sorted() {
		if o.err != nil {
			errs = append(errs, o.err.Error())
		}
	}
	if len(errs) > 0 {
		c = source.Condition{Type: conditionPodNICs, Reason: "Invalid", Message: shown(strings.Join(errs, "; "), longestCondition)}
	}
	return append(list, c)
}

// longestCondition bounds a condition's message, in bytes.
const longestCondition = 1024
