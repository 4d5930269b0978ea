package nics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/source"
)

const (
	// lookEvery is how often Open vSwitch is asked whether it can be used, and
	// lookFor how long it has to answer.
	lookEvery = 10 * time.Second
	lookFor   = 5 * time.Second
)

// The types of conditions.
const (
	conditionOVSDB   = "OVSDBReachable"
	conditionPodNICs = "PodNICsUsable"
)

// health is whether Open vSwitch can be used. The zero value says that it was not asked.
type health struct {
	asked bool
	once  bool // it could be once
	err   error
}

// watchHealth keeps n.health until ctx ends.
func (n *NICs) watchHealth(ctx context.Context) {
	for ctx.Err() == nil {
		err := n.look(ctx)
		if ctx.Err() != nil {
			return
		}
		n.mu.Lock()
		before := n.health
		n.health = health{asked: true, once: before.once || err == nil, err: err}
		n.mu.Unlock()
		switch {
		case err != nil && (!before.asked || before.err == nil):
			n.log.Warn("Open vSwitch cannot be used; NICs that are plugged stay", "error", err)
		case err == nil && before.err != nil:
			n.log.Info("Open vSwitch can be used again")
		}
		select {
		case <-ctx.Done():
		case <-n.clock.After(lookEvery):
		}
	}
}

// look asks for the bridges. One of several is enough: the VPCs of a node may have one
// each.
func (n *NICs) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	var errs []error
	for _, bridge := range n.cfg.Bridges {
		_, err := n.cfg.Switch.Bridge(ctx, bridge)
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

// Ready is nil once PodNICs were listed and Open vSwitch could be used, now or before.
func (n *NICs) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.book.listed.nics || !n.book.listed.namespaces:
		if err := n.book.anyTrouble(); err != nil {
			return fmt.Errorf("the API server has not told yet which PodNICs this node has: %w", err)
		}
		return errors.New("the API server has not told yet which PodNICs this node has")
	case n.cfg.Switch == nil || n.health.once:
		return nil
	case n.health.err != nil:
		return fmt.Errorf("Open vSwitch cannot be used: %w", n.health.err)
	}
	return errors.New("Open vSwitch has not been asked yet")
}

// conditions tell what keeps NICs from being plugged. n.mu is held.
func (n *NICs) conditions() (list []source.Condition) {
	if n.cfg.Switch != nil && n.health.asked {
		c := source.Condition{Type: conditionOVSDB, Healthy: n.health.err == nil, Reason: "Reachable"}
		if err := n.health.err; err != nil {
			c.Reason, c.Message = "Unreachable", err.Error()
			if errors.Is(err, plug.ErrNoBridge) {
				c.Reason = "NoBridge"
			}
		}
		list = append(list, c)
	}
	c := source.Condition{Type: conditionPodNICs, Healthy: true, Reason: "Usable"}
	for _, o := range n.book.sorted() {
		if o.err == nil {
			continue
		}
		if c.Healthy {
			c = source.Condition{Type: conditionPodNICs, Reason: "Invalid", Message: o.err.Error()}
			continue
		}
		c.Message += "; " + o.err.Error()
	}
	c.Message = shown(c.Message, longestCondition)
	return append(list, c)
}

// longestCondition is that of a condition's message, in bytes.
const longestCondition = 1024
