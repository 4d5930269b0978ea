//go:build e2e

package cluster

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/demo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/cgroup"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/test/harness"
)

// Environment variables set by make e2e: directories of images, separated by colons, those of this release and of the
// previous one, those of the Amazon VPC CNI, the helm program, and the directory of containerd 2.
const (
	imagesVariable     = "BERTH_LAB_IMAGES"
	releaseVariable    = "BERTH_RELEASE"
	previousVariable   = "BERTH_RELEASE_PREVIOUS"
	amazonVariable     = "BERTH_LAB_IMAGES_AMAZON"
	helmVariable       = "BERTH_HELM"
	containerdVariable = "BERTH_CONTAINERD2"
)

// needs lists the environment variables that all tests require.
var needs = []string{imagesVariable, releaseVariable, previousVariable, amazonVariable, helmVariable, containerdVariable}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	for _, name := range needs {
		if os.Getenv(name) == "" {
			fmt.Printf("NOT RUN: tests of whole clusters: %s is not set; run make e2e, which builds its content\nFAIL\n", name)
			return 1
		}
	}
	// In the sandbox /sys is private and has no cgroups.
	var st unix.Statfs_t
	if err := unix.Statfs(cgroup.Root, &st); err == nil && st.Type == unix.SYSFS_MAGIC {
		if err := cgroup.Mount(); err != nil {
			fmt.Println("NOT RUN: tests of whole clusters: mount the cgroups that pods need, which takes the machine's root:", err)
			fmt.Println("FAIL")
			return 1
		}
	}
	if err := sweepDead(); err != nil {
		fmt.Println("FAIL: remove leftovers of an interrupted run:", err)
		return 1
	}
	return harness.Main(m, "berthctl")
}

// disks is the directory of the machines' disks.
const disks = "/var/lib/vpclab"

// sweepDead removes the cgroups and disks of interrupted runs, which outlive their sandbox. A lab with a running
// process in one of its cgroups is alive.
func sweepDead() error {
	labs, err := filepath.Glob(disks + "/*")
	errs := []error{err}
	for _, dir := range labs {
		id := filepath.Base(dir)
		groups, _ := filepath.Glob(cgroup.Root + "/*/" + fabric.Prefix(id) + "*")
		alive := len(groups) == 0 // it may be about to start
		for _, g := range groups {
			some, err := cgroup.Group(filepath.Base(g)).Populated() // also from another sandbox
			alive = alive || err != nil || some
		}
		if alive {
			continue
		}
		_, err := cgroup.Sweep(fabric.Prefix(id), time.Minute)
		if err == nil { // otherwise the disk may be in use
			err = os.RemoveAll(dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// TestCluster runs the proofs of `make demo MODE=cluster` with each mode, IP family, runtime and proxy; the clusters
// of other tests are IPv4-only. Cases do not run in parallel, because each needs the whole machine.
func TestCluster(t *testing.T) {
	for _, tc := range []struct {
		mode       lab.Mode
		families   ipfamily.Set
		proxy      host.ProxyMode
		containerd string
	}{
		{lab.NodeMode, ipfamily.OnlyIPv6, host.NFTables, ""}, // Debian's containerd
		{lab.OperatorMode, ipfamily.Dual, host.IPTables, os.Getenv(containerdVariable)},
		{lab.PoolMode, "", host.NFTables, ""},
		{lab.PortMode, "", host.IPTables, ""},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			dir, err := os.MkdirTemp("", "cluster")
			harness.OK(t, err)
			settings := kernelSettings(t)
			var out bytes.Buffer
			err = demo.Run(t.Context(), demo.Options{
				Lab: lab.Options{
					Dir: dir, BinDir: harness.BinDir, Nodes: 3, Mode: tc.mode, IPFamilies: tc.families,
					Kubelets: fromRelease(lab.Kubelets{Proxy: tc.proxy, Containerd: tc.containerd}),
				},
				Program: "vpclab", Out: &out,
				Subtest: func(name string, proof func() error) {
					t.Run(name, func(t *testing.T) { harness.OK(t, proof()) })
				},
			})
			if err != nil {
				t.Errorf("%v\n%s", err, &out)
			}
			t.Log(out.String())
			checkNothingLeft(t, dir)
			if now := kernelSettings(t); now != settings {
				t.Errorf("kernel settings = %s, want %s as before", now, settings)
			}
		})
	}
}

// fromRelease completes options of a lab so that Berth is installed from a release, by default this one.
func fromRelease(k lab.Kubelets) *lab.Kubelets {
	k.Images, k.Helm = append(filepath.SplitList(os.Getenv(imagesVariable)), k.Images...), os.Getenv(helmVariable)
	k.Release = cmp.Or(k.Release, os.Getenv(releaseVariable))
	return &k
}

// checkNothingLeft checks for leftovers that the sandbox does not detect.
func checkNothingLeft(t *testing.T, dir string) {
	t.Helper()
	id := lab.IDOf(dir)
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s still exists", dir)
	}
	if left, err := ns.List(fabric.Prefix(id)); err != nil || len(left) > 0 {
		t.Errorf("network namespaces are left: %v, %v", left, err)
	}
	if left, err := filepath.Glob(cgroup.Root + "/*/" + fabric.Prefix(id) + "*"); err != nil || len(left) > 0 {
		t.Errorf("cgroups are left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(disks, id)); err == nil {
		t.Errorf("the disks of lab %s are left", id)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	harness.OK(t, err)
	if strings.Contains(string(mounts), id) { // ignore the mounts of other labs
		t.Errorf("mounts are left:\n%s", mounts)
	}
}

// kernelSettings returns the settings that a kubelet changes for the whole machine.
func kernelSettings(t *testing.T) string {
	t.Helper()
	var all []string
	for _, name := range []string{"kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory"} {
		data, err := os.ReadFile("/proc/sys/" + name)
		harness.OK(t, err)
		all = append(all, name+"="+strings.TrimSpace(string(data)))
	}
	return strings.Join(all, " ")
}
