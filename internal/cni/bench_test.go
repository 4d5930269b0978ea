package cni_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/rpc/rpcfake"
)

// maxSize is the budget `plugin-size` (docs/design.md, "Budgets") in bytes.
const maxSize = 12 << 20

func TestPluginSize(t *testing.T) {
	info, err := os.Stat(filepath.Join(pluginDir, "berth"))
	must(t, err)
	if info.Size() > maxSize {
		t.Errorf("the plugin has %.1f MiB, the budget is %d", float64(info.Size())/(1<<20), maxSize>>20)
	}
}

// BenchmarkStart is what a pod pays for the plugin alone: exec to exit of an
// ADD that a daemon answers at once, as a median. For comparison, alternating
// with it, the same ADD by a program that differs in having grpc-go's client;
// see package unary.
func BenchmarkStart(b *testing.B) {
	socket := rpcfake.Start(b, &rpcfake.Node{})
	stdin := []byte(conf(socket, "1.0.0"))
	grpcgo := filepath.Join(b.TempDir(), "grpcgo")
	if err := build(grpcgo, "./testdata/grpcgo"); err != nil {
		b.Fatal(err)
	}
	add := func(path string) float64 {
		cmd := exec.Command(path)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c0ffee", "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=" + pluginDir}
		cmd.Stdin = bytes.NewReader(stdin)
		start := time.Now()
		if out, err := cmd.Output(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return float64(time.Since(start).Microseconds()) / 1000
	}
	var berth, withGRPC []float64
	for b.Loop() {
		berth = append(berth, add(filepath.Join(pluginDir, "berth")))
		withGRPC = append(withGRPC, add(grpcgo))
	}
	slices.Sort(berth)
	slices.Sort(withGRPC)
	b.ReportMetric(berth[len(berth)/2], "berth-ms")
	b.ReportMetric(withGRPC[len(withGRPC)/2], "grpc-go-ms")
}
