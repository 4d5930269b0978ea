package daemon

import (
	"encoding/json"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/statefile"
)

// status is nil unless the node cannot take pods at all: as long as the data
// path is not set up, or no address was ever usable. Exhaustion does not make
// it fail, because a failing STATUS gets the node's pods evicted.
func (d *Daemon) status() error {
	if c, ok := d.conditions.get(ConditionDataPath); !ok || !c.Healthy {
		return failf(types.ErrPluginNotAvailable, "datapath", "the node's data path is not ready: %s", c.Message)
	}
	if d.wasUsable() {
		return nil
	}
	if err := d.Source.Ready(); err != nil {
		return failf(types.ErrPluginNotAvailable, "no-address-yet", "no address was usable on this node yet: %s", err)
	}
	d.markUsable()
	return nil
}

// usableMark is the file that remembers, for one instance, that an address was
// usable on it.
const usableMark = "usable.json"

type usableFile struct {
	InstanceID string `json:"instanceID"`
}

func (d *Daemon) wasUsable() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usable
}

// markUsable remembers it across restarts. The first call only does anything.
func (d *Daemon) markUsable() {
	d.mu.Lock()
	first := !d.usable
	d.usable = true
	d.mu.Unlock()
	if !first {
		return
	}
	data, err := json.Marshal(usableFile{d.Store.Node().InstanceID})
	if err == nil {
		err = statefile.Create(filepath.Join(d.StateDir, usableMark), data, 0o600)
	}
	if err != nil {
		d.Log.Warn("remembering that an address was usable", "err", err)
	}
}

// readUsable takes up what an earlier daemon remembered.
func (d *Daemon) readUsable() {
	data, err := statefile.Read(filepath.Join(d.StateDir, usableMark))
	if err != nil {
		return
	}
	var f usableFile
	if json.Unmarshal(data, &f) == nil && f.InstanceID == d.Store.Node().InstanceID {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.usable = true
	}
}
