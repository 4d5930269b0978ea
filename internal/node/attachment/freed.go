package attachment

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// The record of a released address is removed once it has cooled. One file keeps the release times of
// all such addresses, so that after a restart the address that has been free longest is leased
// first. Nothing else depends on the file.

const (
	freedFile = "freed.json"
	// maxFreed limits the file to the latest releases, about 200 kB.
	maxFreed = 4096
)

// Freed is a released address that has cooled.
type Freed struct {
	Addr         netip.Addr    `json:"address"`
	ReleasedBoot time.Duration `json:"releasedBoot"` // on the boot clock, in nanoseconds
}

type freedContent struct {
	Version    int     `json:"version"`
	InstanceID string  `json:"instanceID"`
	BootID     string  `json:"bootID"`
	Freed      []Freed `json:"freed"`
}

// freedList is the content of the file.
type freedList struct {
	files *folder
	node  Node

	mu sync.Mutex // guards at; separate from the Store's, because sorting must not delay an ADD
	at map[netip.Addr]time.Duration
}

// loadFreed reads the file. It ignores a damaged file and one of another instance or boot; the next save
// replaces it.
func loadFreed(files *folder, node Node, log *slog.Logger) *freedList {
	l := &freedList{files: files, node: node, at: map[netip.Addr]time.Duration{}}
	data, err := files.read(freedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return l
	}
	var c freedContent
	if err == nil {
		c, err = decode[freedContent](data)
	}
	switch {
	case err != nil:
		log.Warn("reading the list of cooled addresses failed; they will be leased in arbitrary order", "file", freedFile, "err", err)
	case c.InstanceID == node.InstanceID && c.BootID == node.BootID:
		l.add(c.Freed)
	}
	return l
}

// add keeps the latest release of each address, and the latest maxFreed addresses in total.
func (l *freedList) add(list []Freed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range list {
		l.at[f.Addr] = max(l.at[f.Addr], f.ReleasedBoot)
	}
	if surplus := len(l.at) - maxFreed; surplus > 0 {
		for _, f := range l.sorted()[:surplus] {
			delete(l.at, f.Addr)
		}
	}
}

// sorted returns the addresses with the earliest release first. l.mu is held.
func (l *freedList) sorted() []Freed {
	out := make([]Freed, 0, len(l.at))
	for addr, at := range l.at {
		out = append(out, Freed{addr, at})
	}
	slices.SortFunc(out, func(x, y Freed) int {
		return cmp.Or(cmp.Compare(x.ReleasedBoot, y.ReleasedBoot), x.Addr.Compare(y.Addr))
	})
	return out
}

// list returns the addresses with the earliest release first.
func (l *freedList) list() []Freed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sorted()
}

// save adds addresses and replaces the file. If that fails, they stay in memory. It must not be called
// concurrently.
func (l *freedList) save(list []Freed) error {
	if len(list) == 0 {
		return nil
	}
	l.add(list)
	data, err := encode(freedContent{Version, l.node.InstanceID, l.node.BootID, l.list()})
	if err == nil {
		err = l.files.write(freedFile, data)
	}
	if err != nil {
		return fmt.Errorf("recording cooled addresses: %w", err)
	}
	return nil
}

func (c freedContent) validate() error {
	if c.Version != Version {
		return fmt.Errorf("version is %d, expected %d", c.Version, Version)
	}
	if len(c.Freed) > maxFreed {
		return fmt.Errorf("freed has %d addresses, expected at most %d", len(c.Freed), maxFreed)
	}
	for _, f := range c.Freed {
		if !f.Addr.IsValid() || f.Addr.Zone() != "" {
			return fmt.Errorf("freed: address is %q, expected an IP address without a zone", f.Addr)
		}
		if f.ReleasedBoot < 0 {
			return fmt.Errorf("freed: %s: releasedBoot is %d, expected nanoseconds since boot", f.Addr, f.ReleasedBoot)
		}
	}
	return nil
}
