package foreign

import (
	"crypto/sha1" //nolint:gosec // the Amazon VPC CNI names links by it
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/internal/statefile"
)

// CheckpointFolder contains the checkpoints of ipamd, the node daemon of the Amazon VPC CNI. It is on a tmpfs.
const CheckpointFolder = "/var/run/aws-node"

// CheckpointName is the file of CheckpointFolder that ipamd replaces before it answers a call of its plugin.
const CheckpointName = "ipam.json"

// CheckpointVersion is the only version of the format, since version 1.7 of the Amazon VPC CNI.
const CheckpointVersion = "vpc-cni-ipam/1"

// CheckpointMoved is the version of the empty checkpoint with which Berth replaces ipamd's, so that ipamd does not start.
const CheckpointMoved = "moved-to-berth/1"

// Moved is that checkpoint. ipamd exits at its start with an error that names the version. Otherwise ipamd would not find the
// links of Berth's pods, and would assign their addresses.
var Moved = []byte(`{"version":"` + CheckpointMoved + `","allocations":[]}` + "\n")

// Fence keeps ipamd from starting until the node reboots, unless the folder has a checkpoint. It reports whether it created one.
// It does not replace a checkpoint that ipamd writes at the same time.
func Fence(folder string) (fenced bool, err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return false, fmt.Errorf("create the directory of ipamd's checkpoint: %w", err)
	}
	path := filepath.Join(folder, CheckpointName)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err = statefile.CreateOnly(path, Moved, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// Checkpoint is ipamd's state across restarts: the addresses that pods hold.
type Checkpoint struct {
	Version     string       `json:"version"`
	Allocations []Allocation `json:"allocations"`
}

// Allocation is the address of one attachment. It has an address of one family only.
type Allocation struct {
	NetworkName string     `json:"networkName"` // of the CNI configuration, such as aws-cni
	ContainerID string     `json:"containerID"`
	IfName      string     `json:"ifName"`
	IPv4        netip.Addr `json:"ipv4,omitzero"`
	IPv6        netip.Addr `json:"ipv6,omitzero"`
	Timestamp   int64      `json:"allocationTimestamp"` // nanoseconds since 1970
	Metadata    Metadata   `json:"metadata"`
}

// Metadata names the pod of an Allocation. It is empty in entries that versions before 1.7 left.
type Metadata struct {
	Namespace  string `json:"k8sPodNamespace,omitempty"`
	Pod        string `json:"k8sPodName,omitempty"`
	Interfaces int    `json:"interfacesCount,omitempty"`
}

// Addrs returns the addresses of an allocation.
func (a Allocation) Addrs() (list []netip.Addr) {
	for _, addr := range []netip.Addr{a.IPv4, a.IPv6} {
		if addr.IsValid() {
			list = append(list, addr)
		}
	}
	return list
}

// At returns the time of the allocation.
func (a Allocation) At() time.Time { return time.Unix(0, a.Timestamp) }

// Pod returns the pod as NAMESPACE/NAME, or "" if the checkpoint does not name it.
func (a Allocation) Pod() string {
	if a.Metadata.Pod == "" {
		return ""
	}
	return a.Metadata.Namespace + "/" + a.Metadata.Pod
}

// HostLink returns the name of the pod's link on the node, with the default prefix (AWS_VPC_K8S_CNI_VETHPREFIX); empty
// if the checkpoint does not name the pod.
func (a Allocation) HostLink() string {
	if a.Metadata.Pod == "" {
		return ""
	}
	sum := sha1.Sum([]byte(a.Metadata.Namespace + "." + a.Metadata.Pod)) //nolint:gosec // see above
	return "eni" + hex.EncodeToString(sum[:])[:11]
}

// ParseCheckpoint reads a checkpoint. It skips invalid entries and returns the others together with an error that names the
// invalid ones. If nothing can be read, it returns only an error.
func ParseCheckpoint(data []byte) (Checkpoint, error) {
	var raw struct {
		Version     string            `json:"version"`
		Allocations []json.RawMessage `json:"allocations"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return Checkpoint{}, fmt.Errorf("read the checkpoint of the Amazon VPC CNI: %w", err)
	}
	if raw.Version == CheckpointMoved {
		return Checkpoint{Version: raw.Version}, nil
	}
	if raw.Version != CheckpointVersion {
		return Checkpoint{}, fmt.Errorf("read the checkpoint of the Amazon VPC CNI: version is %.40q, expected %q", raw.Version, CheckpointVersion)
	}
	c := Checkpoint{Version: raw.Version}
	var bad []error
	for i, entry := range raw.Allocations {
		var a Allocation
		err := json.Unmarshal(entry, &a)
		if err == nil {
			err = a.check()
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("allocations[%d]: %w", i, err))
			continue
		}
		c.Allocations = append(c.Allocations, a)
	}
	if len(bad) > 0 {
		const most = 3
		return c, fmt.Errorf("%d entries of the checkpoint of the Amazon VPC CNI are invalid: %w", len(bad), errors.Join(bad[:min(most, len(bad))]...))
	}
	return c, nil
}

func (a Allocation) check() error {
	switch {
	case a.ContainerID == "":
		return errors.New("containerID is empty")
	case !a.IPv4.IsValid() && !a.IPv6.IsValid():
		return errors.New("neither ipv4 nor ipv6 is set")
	case a.IPv4.IsValid() && (!a.IPv4.Is4() || a.IPv4.IsUnspecified()):
		return fmt.Errorf("ipv4 is %s, expected an IPv4 address", a.IPv4)
	case a.IPv6.IsValid() && (!a.IPv6.Is6() || a.IPv6.Is4In6() || a.IPv6.IsUnspecified() || a.IPv6.Zone() != ""):
		return fmt.Errorf("ipv6 is %s, expected an IPv6 address", a.IPv6)
	}
	return nil
}
