package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/statefile"
)

// status returns nil unless the node cannot accept pods at all: the data path is not set up, or no
// address was ever usable. Address exhaustion is not an error, because a failing STATUS gets the node's
// pods evicted.
func (d *Daemon) status() error {
	if c, ok := d.conditions.get(ConditionDataPath); !ok || !c.Healthy {
		return cnierror.New(types.ErrPluginNotAvailable, "datapath", "the node's data path is not ready: %s", c.Message)
	}
	if d.usable.isSet() {
		return nil
	}
	if err := d.Source.Ready(); err != nil {
		return cnierror.New(types.ErrPluginNotAvailable, "no-address-yet", "no address has been usable on this node yet: %s", err)
	}
	d.usable.set()
	return nil
}

// usableMark records in a file that an address was usable on this instance.
type usableMark struct {
	path string
	file usableFile // content of the file for this instance
	log  *slog.Logger

	mu     sync.Mutex // guards usable
	usable bool
}

const usableName = "usable.json"

type usableFile struct {
	InstanceID string `json:"instanceID"`
}

func (m *usableMark) isSet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usable
}

// set writes the file, once.
func (m *usableMark) set() {
	m.mu.Lock()
	first := !m.usable
	m.usable = true
	m.mu.Unlock()
	if !first {
		return
	}
	data, err := statefile.Encode(m.file)
	if err == nil {
		err = statefile.Create(m.path, data, 0o600)
	}
	if err != nil {
		m.log.Warn("recording that an address was usable failed", "err", err)
	}
}

// read reads the file of an earlier daemon.
func (m *usableMark) read() {
	var f usableFile
	data, err := statefile.Read(m.path)
	if err == nil && statefile.Decode(data, &f) == nil && f == m.file {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.usable = true
	}
}

// writableInterval is the interval between test writes of a record. A call that fails to write a record also
// causes one.
const writableInterval = 15 * time.Second

// writable checks whether records can be written.
type writable struct {
	store      *attachment.Store
	conditions *conditions
	failed     retry.Signal // set when a call could not write a record
	clock      clock.Clock
}

// run updates the condition RecordsWritable until ctx ends.
func (w *writable) run(ctx context.Context) {
	for {
		w.look()
		select {
		case <-ctx.Done():
			return
		case <-w.failed:
		case <-w.clock.After(writableInterval):
		}
	}
}

// look writes a test record.
func (w *writable) look() {
	err := w.store.Probe()
	var message string
	if err != nil {
		message = fmt.Sprintf("no pod can start: %s", err)
	}
	switch {
	case err == nil:
		w.conditions.set(ConditionWritable, true, "Writable", "")
	case attachment.IsNoSpace(err):
		w.conditions.set(ConditionWritable, false, "NoSpace", message)
	case errors.Is(err, unix.EROFS):
		w.conditions.set(ConditionWritable, false, "ReadOnly", message)
	default:
		w.conditions.set(ConditionWritable, false, "NotWritable", message)
	}
}

// err returns nil unless records cannot be written. STATUS ignores it: running pods are not affected, and
// would be evicted.
func (w *writable) err() error {
	if c, ok := w.conditions.get(ConditionWritable); ok && !c.Healthy {
		return errors.New(c.Message)
	}
	return nil
}

// Intervals at which the supply of addresses is checked. No pod waits for these checks.
const (
	supplyInterval = 5 * time.Second
	firstInterval  = 100 * time.Millisecond // until an address was usable once
)

// installInterval is the interval at which the installation is checked: a new node image or another installer may
// have replaced it.
const installInterval = time.Minute

// supply watches the source's supply of addresses.
type supply struct {
	source     source.Source
	conditions *conditions
	usable     *usableMark
	install    func(context.Context) (Installation, error) // may be nil
	clock      clock.Clock
}

// run updates the supply conditions, records the first usable address, and keeps the plugin installed
// from then on, until ctx ends.
func (s *supply) run(ctx context.Context) {
	var installAt time.Time
	waiting := false
	for {
		waiting = s.look(waiting)
		wait := firstInterval
		if s.usable.isSet() {
			wait = supplyInterval
			if now := s.clock.Now(); s.install != nil && !now.Before(installAt) && s.installed(ctx) {
				installAt = now.Add(installInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(wait):
		}
	}
}

// look sets the conditions, and reports whether ADDs wait for an address. Waiting ADDs make the
// condition unhealthy if ADDs were waiting at the previous look, too.
func (s *supply) look(waited bool) (waiting bool) {
	if err := s.source.Ready(); err != nil {
		s.conditions.set(ConditionSupply, false, "NoAddressYet", err.Error())
		return false
	}
	s.usable.set()
	snap := s.source.Snapshot()
	for _, c := range snap.Conditions {
		s.conditions.set(c.Type, c.Healthy, c.Reason, c.Message)
	}
	switch {
	case snap.Waiting == 0:
		s.conditions.set(ConditionSupply, true, "Available", "")
	case waited && snap.LastError != "":
		s.conditions.set(ConditionSupply, false, "Exhausted", snap.LastError)
	case waited:
		s.conditions.set(ConditionSupply, false, "Waiting", fmt.Sprintf("%d ADDs are waiting for an address", snap.Waiting))
	}
	return snap.Waiting > 0
}

// installed installs the plugin and its configuration if needed, and reports success.
func (s *supply) installed(ctx context.Context) bool {
	done, err := s.install(ctx)
	if ctx.Err() != nil {
		return false // the daemon is shutting down
	}
	if err != nil {
		s.conditions.set(ConditionInstalled, false, "Failed", err.Error())
		return false
	}
	s.conditions.set(ConditionInstalled, true, "InPlace", done.Remark)
	if done.LeftOut != "" {
		s.conditions.set(ConditionChain, false, "PluginLeftOut", done.LeftOut)
	} else {
		s.conditions.set(ConditionChain, true, "Complete", "")
	}
	return true
}
