package lab

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/cgroup"
)

// DefaultDir is where the vpclab command keeps its lab by default.
const DefaultDir = "/run/vpclab/lab"

// disksDir holds the disks of the machines of labs with kubelets, by lab: they are
// larger than what belongs into /run.
const disksDir = "/var/lib/vpclab"

// portsDir, in a lab's directory, has the files of the OpenStack of a lab in port mode.
const portsDir = "ports"

// kubeDir, in a lab's directory, holds its control plane's files and logs.
const kubeDir = "kube"

var plainID = regexp.MustCompile(`^[a-z0-9]{1,12}$`)

// IDOf is the ID of the lab in a directory: the directory's name below /run/vpclab if that is short, else a hash of
// the path.
func IDOf(dir string) string {
	if base := filepath.Base(dir); filepath.Dir(dir) == filepath.Dir(DefaultDir) && plainID.MatchString(base) {
		return base
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	return fmt.Sprintf("%08x", h.Sum32())
}

// Sweep removes the leftovers of a lab whose process has ended: processes in its namespaces and cgroups, both of
// these, and the directories of its nodes and its control plane. It returns what it removed.
func Sweep(dir, id string) ([]string, error) {
	// What is left of whole machines ends by cgroup: pods are in namespaces of their own.
	groups, groupErr := cgroup.Sweep(fabric.Prefix(id), time.Minute)
	removed, err := fabric.Sweep(id)
	removed, err = append(removed, groups...), errors.Join(groupErr, err)
	for _, d := range []string{filepath.Join(dir, "nodes"), filepath.Join(dir, kubeDir), filepath.Join(dir, portsDir), filepath.Join(disksDir, id)} {
		if _, statErr := os.Stat(d); statErr != nil {
			continue
		}
		if rmErr := os.RemoveAll(d); rmErr != nil {
			err = errors.Join(err, rmErr)
		} else {
			removed = append(removed, d)
		}
	}
	_ = os.Remove(disksDir) // unless another lab has disks there
	return removed, err
}
