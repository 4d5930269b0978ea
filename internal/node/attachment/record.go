package attachment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	"github.com/berthnet/berth/internal/mac"
)

// Version is the format of records. A record of another version is quarantined.
const Version = 1

// State is the progress of an attachment's setup or removal.
type State string

// The states, in the order of an attachment's life cycle.
const (
	// Pending means that the lease is held; the kernel may have parts of the attachment.
	Pending State = "pending"
	// Ready means that the kernel is set up, and the runtime has the result or will get it.
	Ready State = "ready"
	// Releasing means that removal has started and must be finished.
	Releasing State = "releasing"
)

// Netns is a network namespace. Device and inode show whether the path still refers to it.
type Netns struct {
	Path  string `json:"path"`
	Dev   uint64 `json:"dev,omitempty"`
	Inode uint64 `json:"inode,omitempty"`
}

// Same reports whether both are the same namespace, regardless of their paths.
func (n Netns) Same(o Netns) bool { return n.Inode != 0 && n.Dev == o.Dev && n.Inode == o.Inode }

// Record is the information about an attachment that a restarted daemon needs.
type Record struct {
	Version    int       `json:"version"`
	Key        Key       `json:"key"`
	Pod        Pod       `json:"pod,omitzero"`
	Lease      Lease     `json:"lease"`
	NICs       []NIC     `json:"nics,omitempty"`
	Chained    *Chained  `json:"chained,omitempty"` // the interface is another network's; then there is no lease
	Egress     *Egress   `json:"egress,omitempty"`  // nil: the pod has none
	Adopted    *Adopted  `json:"adopted,omitempty"` // nil: Berth created the attachment
	Netns      Netns     `json:"netns"`
	HostLink   string    `json:"hostLink"` // names the record's file too
	HostMAC    mac.Addr  `json:"hostMAC,omitempty"`
	PodMAC     mac.Addr  `json:"podMAC,omitempty"`
	MTU        int       `json:"mtu,omitempty"` // bytes
	State      State     `json:"state"`
	Since      time.Time `json:"since"`
	InstanceID string    `json:"instanceID"`
	BootID     string    `json:"bootID"`
}

// Cooling is a released address that is temporarily withheld.
type Cooling struct {
	Version  int        `json:"version"`
	Addr     netip.Addr `json:"address"`
	Key      Key        `json:"key"` // the attachment that held it
	HostLink string     `json:"hostLink,omitempty"`
	// ReleasedBoot is the time of release on the boot clock, in nanoseconds. Unlike wall time it never
	// goes backwards.
	ReleasedBoot time.Duration `json:"releasedBoot"`
	BootID       string        `json:"bootID"`
	InstanceID   string        `json:"instanceID"`
}

// ForLog returns the attachment as attributes of a log line, followed by more.
func (r Record) ForLog(more ...any) []any {
	args := append([]any{"attachment", r.Key.String(), "namespace", r.Pod.Namespace, "pod", r.Pod.Name, "addresses", r.Lease.Addrs()}, more...)
	if len(r.NICs) > 0 {
		args = append(args, "nics", r.NICNames())
	}
	if names := r.EgressNames(); len(names) > 0 {
		args = append(args, "egress", names)
	}
	return args
}

// NICNames returns the interfaces and ports of the NICs in readable form.
func (r Record) NICNames() (names []string) {
	for _, n := range r.NICs {
		names = append(names, n.IfName+"="+n.Port)
	}
	return names
}

// EgressNames returns the Egresses that the pod is a client of in readable form.
func (r Record) EgressNames() (names []string) {
	if r.Egress == nil {
		return nil
	}
	for _, e := range r.Egress.Egresses {
		names = append(names, e.Namespace+"/"+e.Name)
	}
	return names
}

// Encode returns the record in its stored form.
func (r Record) Encode() ([]byte, error) {
	r.Version = Version
	return encode(r)
}

// Encode returns the record in its stored form.
func (c Cooling) Encode() ([]byte, error) {
	c.Version = Version
	return encode(c)
}

// DecodeRecord decodes the output of Record.Encode. The error names the invalid field.
func DecodeRecord(data []byte) (Record, error) { return decode[Record](data) }

// DecodeCooling decodes the output of Cooling.Encode.
func DecodeCooling(data []byte) (Cooling, error) { return decode[Cooling](data) }

// stored is the validated content of a file.
type stored interface{ validate() error }

func encode[T stored](v T) ([]byte, error) {
	if err := v.validate(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding a record: %w", err)
	}
	return append(data, '\n'), nil
}

func decode[T stored](data []byte) (v T, err error) {
	var zero T
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&v); err != nil {
		return zero, fmt.Errorf("decoding a record: %w", err)
	}
	if dec.More() {
		return zero, errors.New("decoding a record: data after its end")
	}
	return v, v.validate()
}

// linkName is stricter than the kernel, because the name is also part of a file name.
var linkName = regexp.MustCompile(`^[0-9A-Za-z_-]{1,15}$`)

func (r Record) validate() error {
	switch {
	case r.Version != Version:
		return fmt.Errorf("version is %d, expected %d", r.Version, Version)
	case r.Key.ContainerID == "" || r.Key.IfName == "":
		return fmt.Errorf("key %q lacks a container ID or interface name", r.Key)
	case r.Lease.Empty() && r.First() == nil && r.Chained == nil:
		return fmt.Errorf("lease has no address, and no NIC is named %s", r.Key.IfName)
	case r.State != Pending && r.State != Ready && r.State != Releasing:
		return fmt.Errorf("state is %q, expected pending, ready or releasing", r.State)
	case !linkName.MatchString(r.HostLink):
		return fmt.Errorf("hostLink is %q, expected a link name", r.HostLink)
	case r.InstanceID == "" || r.BootID == "":
		return errors.New("instanceID or bootID is empty")
	}
	if err := r.Lease.validate(); err != nil {
		return err
	}
	if err := r.checkNICs(); err != nil {
		return err
	}
	if err := r.checkAdopted(); err != nil {
		return err
	}
	return r.checkEgress()
}

func (c Cooling) validate() error {
	switch {
	case c.Version != Version:
		return fmt.Errorf("version is %d, expected %d", c.Version, Version)
	case !c.Addr.IsValid() || c.Addr.Zone() != "":
		return fmt.Errorf("address is %q, expected an IP address without a zone", c.Addr)
	case c.ReleasedBoot < 0:
		return fmt.Errorf("releasedBoot is %d, expected nanoseconds since boot", c.ReleasedBoot)
	case c.InstanceID == "" || c.BootID == "":
		return errors.New("instanceID or bootID is empty")
	}
	return nil
}
