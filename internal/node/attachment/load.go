package attachment

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The names of the files in a store's directory.
const (
	recordPrefix  = "attachment-" // followed by the host link's name
	coolingPrefix = "cooling-"    // followed by the address
	recordSuffix  = ".json"
	badSuffix     = ".bad"     // damaged
	foreignSuffix = ".foreign" // of another instance
	keptSuffix    = ".kept"    // damaged, and kept for people only
	tmpPrefix     = ".new-"    // not renamed into place yet
)

func recordFile(hostLink string) string { return recordPrefix + hostLink + recordSuffix }
func coolingFile(a netip.Addr) string   { return coolingPrefix + a.String() + recordSuffix }

// Quarantined is a damaged record, whose file was renamed, with what could be read of it. Its
// addresses may be in use.
type Quarantined struct {
	File      string // name in the directory
	Reason    error
	Cooling   bool // it was the record of a cooling address
	Addresses []netip.Addr
	HostLink  string // of its attachment; empty for a cooling record
}

// load fills the index from the directory.
func (s *Store) load() ([]Quarantined, error) {
	entries, err := os.ReadDir(s.files.dir)
	if err != nil {
		return nil, err
	}
	var bad []Quarantined
	for _, e := range entries {
		name := e.Name()
		switch {
		case !e.Type().IsRegular():
		case strings.HasPrefix(name, tmpPrefix):
			if err := s.files.remove(name); err != nil {
				return nil, err
			}
		case !strings.HasPrefix(name, recordPrefix) && !strings.HasPrefix(name, coolingPrefix):
		case strings.HasSuffix(name, recordSuffix) || strings.HasSuffix(name, recordSuffix+badSuffix):
			q, err := s.loadFile(name)
			if err != nil {
				return nil, err
			}
			if q != nil {
				bad = append(bad, *q)
			}
		}
	}
	return bad, nil
}

// loadFile reads one file, and indexes it, sets it aside or quarantines it. The error is of the file
// system.
func (s *Store) loadFile(name string) (*Quarantined, error) {
	data, err := s.files.read(name)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(name, badSuffix) {
		return salvage(name, data, errors.New("quarantined at an earlier start")), nil
	}
	owner, problem := s.parse(name, data)
	switch {
	case problem != nil:
		s.log.Error("quarantining a damaged record", "file", name, "err", problem)
		bad := quarantineName(name)
		if err := s.files.rename(name, bad); err != nil {
			return nil, err
		}
		return salvage(bad, data, problem), nil
	case owner != s.node.InstanceID:
		s.log.Warn("setting aside a record of another instance", "file", name, "instance", owner)
		return nil, s.files.rename(name, name+foreignSuffix)
	}
	return nil, nil
}

// parse decodes a file, and indexes it if it is this instance's. It returns the instance that wrote
// it, and why it is invalid.
func (s *Store) parse(name string, data []byte) (owner string, problem error) {
	if strings.HasPrefix(name, coolingPrefix) {
		c, err := DecodeCooling(data)
		if err != nil {
			return "", err
		}
		if name != coolingFile(c.Addr) {
			return "", fmt.Errorf("file %s holds the cooling record of %s", name, c.Addr)
		}
		if c.InstanceID == s.node.InstanceID {
			s.cooling[c.Addr] = c
		}
		return c.InstanceID, nil
	}
	r, err := DecodeRecord(data)
	if err != nil {
		return "", err
	}
	if name != recordFile(r.HostLink) {
		return "", fmt.Errorf("file %s holds the record of %s", name, r.Key)
	}
	if r.InstanceID != s.node.InstanceID {
		return r.InstanceID, nil
	}
	for _, a := range r.Lease.Held() {
		if holder, ok := s.byAddr[a]; ok {
			return "", fmt.Errorf("address %s of %s is also held by %s", a, r.Key, holder)
		}
	}
	for _, n := range r.NICs {
		if holder, ok := s.byPort[n.Port]; ok {
			return "", fmt.Errorf("port %s of %s is also held by %s", n.Port, r.Key, holder)
		}
	}
	s.index(r)
	return r.InstanceID, nil
}

// maxFileName is the longest name of a file in bytes (NAME_MAX).
const maxFileName = 255

// quarantineName is the name of the file of a damaged record. A name that leaves no room for suffixes
// was not written by this program; a hash replaces its end.
func quarantineName(name string) string {
	if len(name)+len(badSuffix)+len(keptSuffix) <= maxFileName {
		return name + badSuffix
	}
	return fmt.Sprintf("%s%x", name[:100], sha256.Sum256([]byte(name))) + recordSuffix + badSuffix
}

// Keep sets a quarantined file aside for people: it is not read again.
func (s *Store) Keep(q Quarantined) error {
	if err := s.files.rename(q.File, q.File+keptSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("setting the quarantined record %s aside: %w", q.File, err)
	}
	return nil
}

// Discard removes a quarantined file once nothing depends on it.
func (s *Store) Discard(q Quarantined) error {
	if err := s.files.remove(q.File); err != nil {
		return fmt.Errorf("removing the quarantined record %s: %w", q.File, err)
	}
	return nil
}

var addrField = regexp.MustCompile(`"(?:ipv4|ipv6|nodeLocal)":\s*"([0-9A-Fa-f.:]+)"`)

// salvage reads what it can of a damaged file: the name has the host link or the cooling address, and
// a truncated record often still has its addresses.
func salvage(name string, data []byte, reason error) *Quarantined {
	q := &Quarantined{File: name, Reason: reason}
	stem := strings.TrimSuffix(strings.TrimSuffix(name, badSuffix), recordSuffix)
	if addr, ok := strings.CutPrefix(stem, coolingPrefix); ok {
		q.Cooling = true
		if a, err := netip.ParseAddr(addr); err == nil && a.Zone() == "" {
			q.Addresses = append(q.Addresses, a)
		}
		return q
	}
	q.HostLink = strings.TrimPrefix(stem, recordPrefix)
	for _, m := range addrField.FindAllSubmatch(data, -1) {
		if a, err := netip.ParseAddr(string(m[1])); err == nil && !slices.Contains(q.Addresses, a) {
			q.Addresses = append(q.Addresses, a)
		}
	}
	return q
}
