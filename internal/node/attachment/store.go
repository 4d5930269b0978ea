package attachment

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Node is the origin of records: the instance, and the boot of its kernel.
type Node struct {
	InstanceID string
	BootID     string
}

// Store keeps the records of this node in a directory, one file each, with an index in memory. Methods
// for different keys may be called concurrently. The caller serializes calls for one key by holding
// the container's lock.
type Store struct {
	files *folder
	node  Node
	log   *slog.Logger

	mu      sync.RWMutex // guards the maps below, never held during I/O
	records map[Key]Record
	byAddr  map[netip.Addr]Key
	byLink  map[string]Key
	byPort  map[string]Key   // by the port ID of a NIC
	of      map[string][]Key // by container ID
	cooling map[netip.Addr]Cooling

	freed *freedList
}

// PortTaken is the error for a port that belongs to another attachment.
type PortTaken struct {
	IfName string // interface of the NIC that requested it
	Port   string // ID of the port
	Holder Key
}

// Error implements error.
func (p *PortTaken) Error() string {
	return fmt.Sprintf("port %s of NIC %s belongs to %s", p.Port, p.IfName, p.Holder)
}

// Open reads the records in dir, which it creates if missing (0700), and returns the damaged ones.
// Records of another instance are set aside, damaged ones quarantined; neither is indexed.
func Open(dir string, node Node, log *slog.Logger) (*Store, []Quarantined, error) {
	if node.InstanceID == "" || node.BootID == "" {
		return nil, nil, fmt.Errorf("opening attachment records: instance ID %q and boot ID %q must be known", node.InstanceID, node.BootID)
	}
	files, err := newFolder(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the directory of attachment records: %w", err)
	}
	s := &Store{
		files: files, node: node, log: log,
		records: map[Key]Record{}, byAddr: map[netip.Addr]Key{}, byLink: map[string]Key{}, byPort: map[string]Key{}, of: map[string][]Key{},
		cooling: map[netip.Addr]Cooling{},
	}
	bad, err := s.load()
	if err != nil {
		return nil, nil, fmt.Errorf("reading attachment records: %w", err)
	}
	s.freed = loadFreed(files, node, log)
	return s, bad, nil
}

// Node returns the node identity that the store writes into records.
func (s *Store) Node() Node { return s.node }

// Freed returns the addresses that have cooled on this instance since boot, each with its last release,
// the earliest first.
func (s *Store) Freed() []Freed { return s.freed.list() }

// AddFreed adds addresses that have cooled, and replaces the file. If that fails, they stay in
// memory. It must not be called concurrently.
func (s *Store) AddFreed(list []Freed) error { return s.freed.save(list) }

// Probe writes and removes a file the way records are written, and returns the error. It must not be called
// concurrently.
func (s *Store) Probe() error { return s.files.probe() }

// Get returns the record of key.
func (s *Store) Get(key Key) (Record, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.records[key]
	return r, ok
}

// ByAddr returns the record of the attachment that holds addr.
func (s *Store) ByAddr(addr netip.Addr) (Record, bool) { return find(s, s.byAddr, addr) }

// ByPort returns the record of the attachment that has a port, by port ID.
func (s *Store) ByPort(port string) (Record, bool) { return find(s, s.byPort, port) }

// find returns the record that an index of the store points to.
func find[K comparable](s *Store, index map[K]Key, k K) (r Record, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if key, held := index[k]; held {
		r, ok = s.records[key]
	}
	return r, ok
}

// Has reports whether the attachment with a host link has a record, and, if port is not empty, has that port.
func (s *Store) Has(hostLink, port string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	key, ok := s.byLink[hostLink]
	if !ok || port == "" {
		return ok
	}
	return slices.ContainsFunc(s.records[key].NICs, func(n NIC) bool { return n.Port == port })
}

// Records returns all attachments, in no particular order.
func (s *Store) Records() []Record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.AppendSeq(make([]Record, 0, len(s.records)), maps.Values(s.records))
}

// Of returns the attachments of a container, in no particular order.
func (s *Store) Of(containerID string) (list []Record) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, key := range s.of[containerID] {
		list = append(list, s.records[key])
	}
	return list
}

// Cooling returns the cooling record of addr.
func (s *Store) Cooling(addr netip.Addr) (Cooling, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c, ok := s.cooling[addr]
	return c, ok
}

// CoolingRecords returns the cooling addresses, in no particular order.
func (s *Store) CoolingRecords() []Cooling {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.AppendSeq(make([]Cooling, 0, len(s.cooling)), maps.Values(s.cooling))
}

// Put writes a record, atomically replacing the one with the same key, and sets its origin. Without
// space for a second file it overwrites the first. It rejects an address or host link that belongs to
// another attachment, and such a port with a *PortTaken.
func (s *Store) Put(r Record) error {
	r.Version, r.InstanceID, r.BootID = Version, s.node.InstanceID, s.node.BootID
	data, err := r.Encode()
	if err != nil {
		return fmt.Errorf("recording attachment %s: %w", r.Key, err)
	}
	if err := s.reserve(r); err != nil {
		return err
	}
	err = s.files.write(recordFile(r.HostLink), data)
	if _, had := s.Get(r.Key); had && IsNoSpace(err) && s.files.overwrite(recordFile(r.HostLink), data) == nil {
		err = nil
	}
	if err != nil {
		s.mu.Lock()
		s.unreserve(r)
		s.mu.Unlock()
		return fmt.Errorf("recording attachment %s: %w", r.Key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.records[r.Key]; ok {
		s.drop(old)
	}
	s.index(r)
	return nil
}

// reserve adds the record's addresses, ports and link to the index before the file is written, so
// that two attachments cannot claim the same one.
func (s *Store) reserve(r Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if holder, ok := s.byLink[r.HostLink]; ok && holder != r.Key {
		return fmt.Errorf("recording attachment %s: host link %s belongs to %s", r.Key, r.HostLink, holder)
	}
	if old, ok := s.records[r.Key]; ok && old.HostLink != r.HostLink {
		return fmt.Errorf("recording attachment %s: its host link is %s, not %s", r.Key, old.HostLink, r.HostLink)
	}
	for _, a := range r.Lease.Held() {
		if holder, ok := s.byAddr[a]; ok && holder != r.Key {
			return fmt.Errorf("recording attachment %s: address %s is held by %s", r.Key, a, holder)
		}
	}
	for _, n := range r.NICs {
		if holder, ok := s.byPort[n.Port]; ok && holder != r.Key {
			return fmt.Errorf("recording attachment %s: %w", r.Key, &PortTaken{n.IfName, n.Port, holder})
		}
	}
	for _, a := range r.Lease.Held() {
		s.byAddr[a] = r.Key
	}
	for _, n := range r.NICs {
		s.byPort[n.Port] = r.Key
	}
	s.byLink[r.HostLink] = r.Key
	return nil
}

// unreserve reverts reserve, except for resources of an indexed record. s.mu is held.
func (s *Store) unreserve(r Record) {
	old, had := s.records[r.Key]
	if s.byLink[r.HostLink] == r.Key && !had {
		delete(s.byLink, r.HostLink)
	}
	for _, a := range r.Lease.Held() {
		if s.byAddr[a] == r.Key && (!had || !slices.Contains(old.Lease.Held(), a)) {
			delete(s.byAddr, a)
		}
	}
	for _, n := range r.NICs {
		if s.byPort[n.Port] == r.Key && !slices.ContainsFunc(old.NICs, func(o NIC) bool { return o.Port == n.Port }) {
			delete(s.byPort, n.Port)
		}
	}
}

// Delete removes the record of key. A missing record is not an error.
func (s *Store) Delete(key Key) error {
	old, ok := s.Get(key)
	if !ok {
		return nil
	}
	if err := s.files.remove(recordFile(old.HostLink)); err != nil {
		return fmt.Errorf("removing the record of attachment %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(old)
	return nil
}

// PutCooling writes the cooling record of an address, stamped with the node's identity.
func (s *Store) PutCooling(c Cooling) error {
	c.Version, c.InstanceID, c.BootID = Version, s.node.InstanceID, s.node.BootID
	data, err := c.Encode()
	if err != nil {
		return fmt.Errorf("recording that %s cools: %w", c.Addr, err)
	}
	if err := s.files.write(coolingFile(c.Addr), data); err != nil {
		return fmt.Errorf("recording that %s cools: %w", c.Addr, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cooling[c.Addr] = c
	return nil
}

// DeleteCooling removes the cooling record of an address, if there is one. Otherwise it makes no
// system call.
func (s *Store) DeleteCooling(addr netip.Addr) error {
	s.mu.RLock()
	_, ok := s.cooling[addr]
	s.mu.RUnlock()
	if !ok {
		return nil
	}
	if err := s.files.remove(coolingFile(addr)); err != nil {
		return fmt.Errorf("removing the cooling record of %s: %w", addr, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cooling, addr)
	return nil
}

// index adds r to the maps. s.mu is held.
func (s *Store) index(r Record) {
	s.records[r.Key] = r
	s.of[r.Key.ContainerID] = append(s.of[r.Key.ContainerID], r.Key)
	s.byLink[r.HostLink] = r.Key
	for _, a := range r.Lease.Held() {
		s.byAddr[a] = r.Key
	}
	for _, n := range r.NICs {
		s.byPort[n.Port] = r.Key
	}
}

// drop removes r from the maps. s.mu is held.
func (s *Store) drop(r Record) {
	delete(s.records, r.Key)
	keys := slices.DeleteFunc(s.of[r.Key.ContainerID], func(k Key) bool { return k == r.Key })
	if s.of[r.Key.ContainerID] = keys; len(keys) == 0 {
		delete(s.of, r.Key.ContainerID)
	}
	if s.byLink[r.HostLink] == r.Key {
		delete(s.byLink, r.HostLink)
	}
	for _, a := range r.Lease.Held() {
		if s.byAddr[a] == r.Key {
			delete(s.byAddr, a)
		}
	}
	for _, n := range r.NICs {
		if s.byPort[n.Port] == r.Key {
			delete(s.byPort, n.Port)
		}
	}
}
