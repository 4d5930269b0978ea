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

// DefaultDir is the default directory of the vpclab command's lab.
const DefaultDir = "/run/vpclab/lab"

// disksDir contains the disks of the machines of labs with kubelets, by lab: they are too large for /run.
const disksDir = "/var/lib/vpclab"

// portsDir, in a lab's directory, contains the files of the OpenStack of a lab in port mode.
const portsDir = "ports"

// kubeDir, in a lab's directory, contains its control plane's files and logs.
const kubeDir = "kube"

var plainID = regexp.MustCompile(`^[a-z0-9]{1,12}$`)

// IDOf returns the ID of the lab in a directory: the directory's name below /run/vpclab if that is short, otherwise a
// hash of the path.
func IDOf(dir string) string {
	if base := filepath.Base(dir); filepath.Dir(dir) == filepath.Dir(DefaultDir) && plainID.MatchString(base) {
		return base
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	return fmt.Sprintf("%08x", h.Sum32())
}

// Sweep removes the leftovers of a lab whose process has ended: processes in its namespaces and cgroups, the namespaces
// and cgroups themselves, and the directories of its nodes and its control plane. It returns what it removed.
func Sweep(dir, id string) ([]string, error) {
	// Processes of whole machines are found by cgroup: pods have their own namespaces.
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
