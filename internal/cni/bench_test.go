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

// maxSize is the budget `plugin-size` of design.md section 10, in bytes.
const maxSize = 12 << 20

func TestPluginSize(t *testing.T) {
	info, err := os.Stat(filepath.Join(pluginDir, "berth"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxSize {
		t.Errorf("the plugin has %.1f MiB, the budget is %d", float64(info.Size())/(1<<20), maxSize>>20)
	}
}

// BenchmarkStart is what a pod pays for the plugin alone: exec to exit of an
// ADD that a daemon answers at once. For comparison the same ADD by a program
// that differs in having grpc-go's client; see package unary.
func BenchmarkStart(b *testing.B) {
	socket := rpcfake.Start(b, &rpcfake.Node{})
	stdin := []byte(conf(socket, "1.0.0"))
	grpcgo := filepath.Join(b.TempDir(), "grpcgo")
	if err := build(grpcgo, "./testdata/grpcgo"); err != nil {
		b.Fatal(err)
	}
	for _, bm := range []struct{ name, path string }{
		{"berth", filepath.Join(pluginDir, "berth")}, {"grpc-go", grpcgo},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				begun := time.Now()
				cmd := exec.Command(bm.path)
				cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c0ffee", "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=" + pluginDir}
				cmd.Stdin = bytes.NewReader(stdin)
				if out, err := cmd.Output(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		})
	}
}
