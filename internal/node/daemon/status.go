package daemon

import (
	"log/slog"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/statefile"
)

// status is nil unless the node cannot take pods at all: as long as the data
// path is not set up, or no address was ever usable. Exhaustion does not make
// it fail, because a failing STATUS gets the node's pods evicted.
func (d *Daemon) status() error {
	if c, ok := d.conditions.get(ConditionDataPath); !ok || !c.Healthy {
		return cnierror.New(types.ErrPluginNotAvailable, "datapath", "the node's data path is not ready: %s", c.Message)
	}
	if d.usable.isSet() {
		return nil
	}
	if err := d.Source.Ready(); err != nil {
		return cnierror.New(types.ErrPluginNotAvailable, "no-address-yet", "no address was usable on this node yet: %s", err)
	}
	d.usable.set()
	return nil
}

// usableMark remembers that an address was usable on this instance, in a file
// across restarts.
type usableMark struct {
	path string
	file usableFile // what the mark of this instance has
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

// set remembers it. The first call only does anything.
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
		m.log.Warn("remembering that an address was usable", "err", err)
	}
}

// read takes up what an earlier daemon remembered.
func (m *usableMark) read() {
	var f usableFile
	data, err := statefile.Read(m.path)
	if err == nil && statefile.Decode(data, &f) == nil && f == m.file {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.usable = true
	}
}
