package awsvpccni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/statefile"
)

// asideSuffix ends the names of files that are set aside.
const asideSuffix = ".berth"

// files are the Amazon VPC CNI's files on the node.
type files struct {
	run  string // of ipamd, such as /var/run/aws-node
	conf string // of CNI configurations
	cni  string // cache of libcni, in which container runtimes keep what they passed to plugins
}

func (f files) checkpoint() string { return filepath.Join(f.run, foreign.CheckpointName) }
func (f files) aside() string      { return f.checkpoint() + asideSuffix }
func (f files) list() string       { return filepath.Join(f.conf, conflist) }

// read returns the checkpoint, which may be set aside. unreadable is about entries of it. One in its place counts, even
// if an apply that was killed has left another one aside: ipamd may have run since.
func (f files) read() (c foreign.Checkpoint, aside bool, unreadable, err error) {
	for _, path := range []string{f.checkpoint(), f.aside()} {
		data, err := statefile.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return c, false, nil, fmt.Errorf("read ipamd's checkpoint: %w", err)
		}
		if c, unreadable = foreign.ParseCheckpoint(data); c.Version != foreign.CheckpointMoved {
			return c, path == f.aside(), unreadable, nil
		}
	}
	return foreign.Checkpoint{}, false, nil, nil
}

// uid returns the UID of an allocation's pod, which ipamd does not keep; empty: unknown.
func (f files) uid(a foreign.Allocation) string {
	data, err := statefile.Read(filepath.Join(f.cni, "results", a.NetworkName+"-"+a.ContainerID+"-"+a.IfName))
	if err != nil || strings.ContainsRune(a.ContainerID+a.NetworkName+a.IfName, filepath.Separator) {
		return ""
	}
	var cached struct {
		Args [][2]string `json:"cniArgs"`
	}
	if json.Unmarshal(data, &cached) != nil {
		return ""
	}
	for _, arg := range cached.Args {
		if arg[0] == "K8S_POD_UID" {
			return arg[1]
		}
	}
	return ""
}

// otherCards reports whether ipamd has checkpoints of other network cards than the first.
func (f files) otherCards() bool {
	found, _ := filepath.Glob(filepath.Join(f.run, "ipam-nic-*.json"))
	return len(found) > 0
}

// setAside replaces the checkpoint, so that ipamd refuses to start. Otherwise it would miss the links of the pods, and
// hand out their addresses.
func (f files) setAside() (changed bool, err error) {
	c, aside, unreadable, err := f.read()
	if err != nil || unreadable != nil {
		return false, errors.Join(err, unreadable)
	}
	if changed, err = f.take(); changed || err != nil {
		return changed, err
	}
	if !aside {
		if err := f.stage(c); err != nil {
			return false, err
		}
	}
	fenced, err := foreign.Fence(f.run)
	if err == nil && !fenced { // ipamd may have written its first one just now
		_, err = f.take()
	}
	return fenced || !aside, err
}

// take moves ipamd's checkpoint aside, in place of an older one, and leaves the one that keeps ipamd from starting. Both
// happen at once: whatever ipamd writes meanwhile is either moved or stays in place, from where the next call moves it.
func (f files) take() (changed bool, err error) {
	_, err = os.Lstat(f.checkpoint())
	if errors.Is(err, fs.ErrNotExist) || f.fenced() {
		return false, nil
	}
	if err == nil {
		err = statefile.Replace(f.aside(), foreign.Moved, 0o644)
	}
	if err == nil {
		err = statefile.Exchange(f.aside(), f.checkpoint())
	}
	if err != nil {
		return false, fmt.Errorf("set ipamd's checkpoint aside: %w", err)
	}
	return true, nil
}

// stage writes the checkpoint that is set aside.
func (f files) stage(c foreign.Checkpoint) error {
	if err := os.MkdirAll(f.run, 0o755); err != nil {
		return fmt.Errorf("create the directory of ipamd's checkpoint: %w", err)
	}
	c.Version = foreign.CheckpointVersion
	if c.Allocations == nil {
		c.Allocations = []foreign.Allocation{}
	}
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode ipamd's checkpoint: %w", err)
	}
	return statefile.Replace(f.aside(), append(data, '\n'), 0o644)
}

// restore puts the checkpoint back, from which ipamd starts. One that ipamd has written in its place stays.
func (f files) restore() (changed bool, err error) {
	if _, err := os.Lstat(f.aside()); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if _, err = foreign.Fence(f.run); err == nil { // a reboot may have removed it
		err = statefile.Exchange(f.aside(), f.checkpoint())
	}
	if err != nil {
		return false, fmt.Errorf("restore ipamd's checkpoint: %w", err)
	}
	if !isMoved(f.aside()) {
		return false, errors.Join(errors.New("ipamd has written its checkpoint meanwhile: stop it, and repeat the command"), statefile.Exchange(f.aside(), f.checkpoint()))
	}
	return true, f.dropMoved()
}

// dropMoved removes a file that only keeps ipamd from starting, from where a checkpoint is set aside.
func (f files) dropMoved() error {
	if !isMoved(f.aside()) {
		return nil
	}
	if err := os.Remove(f.aside()); err != nil {
		return fmt.Errorf("remove what is left of a rollback: %w", err)
	}
	return nil
}

// isMoved reports whether a file is the checkpoint with which ipamd refuses to start.
func isMoved(path string) bool {
	data, err := statefile.Read(path)
	return err == nil && bytes.Equal(data, foreign.Moved)
}

// configuration is a CNI configuration.
type configuration struct {
	Name    string `json:"name"`
	Plugins []struct {
		Type       string `json:"type"`
		VethPrefix string `json:"vethPrefix"`
	} `json:"plugins"`
}

func (c configuration) has(plugin string) bool {
	for _, p := range c.Plugins {
		if p.Type == plugin {
			return true
		}
	}
	return false
}

// prefix begins the names of pods' links.
func (c configuration) prefix() string {
	for _, p := range c.Plugins {
		if p.VethPrefix != "" {
			return p.VethPrefix
		}
	}
	return defaultPrefix
}

// conflist reads the Amazon VPC CNI's configuration, which may be set aside; empty if there is none.
func (f files) conflist() (c configuration, err error) {
	for _, path := range []string{f.list(), f.list() + asideSuffix} {
		data, err := statefile.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(data, &c)
		}
		if err != nil {
			return c, fmt.Errorf("read %s: %w", path, err)
		}
		return c, nil
	}
	return c, nil
}

// hideConflist sets the configuration aside. Its name sorts before that of Berth's.
func (f files) hideConflist() (changed bool, err error) { return move(f.list(), f.list()+asideSuffix) }

// hidden reports whether the configuration is set aside.
func (f files) hidden() bool {
	_, err := os.Lstat(f.list() + asideSuffix)
	return err == nil
}

// showConflist puts the configuration back.
func (f files) showConflist() (changed bool, err error) { return move(f.list()+asideSuffix, f.list()) }

func move(from, to string) (changed bool, err error) {
	err = os.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("move %s: %w", from, err)
	}
	return true, nil
}

// fenced reports whether ipamd refuses to start.
func (f files) fenced() bool { return isMoved(f.checkpoint()) }

// unfence lets ipamd start on a node from which nothing has moved: berthd has started there once.
func (f files) unfence() (changed bool, err error) {
	if err := f.dropMoved(); err != nil || !f.fenced() {
		return false, err
	}
	if err := os.Remove(f.checkpoint()); err != nil {
		return false, fmt.Errorf("remove the checkpoint that keeps ipamd from starting: %w", err)
	}
	return true, nil
}

// all lists the files that Finish removes. The checkpoint that keeps ipamd from starting stays.
func (f files) all() (list []string) {
	for _, pattern := range []string{
		filepath.Join(f.run, foreign.CheckpointName+"*"), filepath.Join(f.run, "ipam-nic-*.json"), filepath.Join(f.run, "ipamd.sock"),
		f.list(), f.list() + asideSuffix,
	} {
		found, _ := filepath.Glob(pattern)
		list = append(list, found...)
	}
	list = slices.DeleteFunc(list, func(path string) bool { return path == f.checkpoint() && f.fenced() })
	slices.Sort(list)
	return slices.Compact(list)
}
