package demo

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berthd", "berth", "berthctl", "berth-operator", "berth-egress"))
}

func options(t *testing.T, out *bytes.Buffer) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "demo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s still exists", dir)
		}
		if left, err := ns.List(fabric.Prefix(lab.IDOf(dir))); err != nil || len(left) > 0 {
			t.Errorf("namespaces after the demo = %v, %v; want none", left, err)
		}
	})
	// Longer than the demo's Leases, so that the leader stays leader when a busy machine stalls.
	leases := []string{"--lease-duration=10s", "--renew-deadline=8s"}
	return Options{Lab: lab.Options{Dir: dir, BinDir: harness.BinDir, Nodes: 2, OperatorArgs: leases}, Out: out}
}

// prove runs a demo with each proof as a subtest, and counts the check marks in its report.
func prove(t *testing.T, o Options, out *bytes.Buffer, proofs int) {
	t.Helper()
	o.Subtest = func(name string, proof func() error) {
		t.Run(name, func(t *testing.T) { harness.OK(t, proof()) })
	}
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if got := strings.Count(out.String(), "  ✓ "); got != proofs {
		t.Errorf("%d check marks for %d proofs:\n%s", got, proofs, out)
	}
}

// TestEveryProofPasses runs one demo per test slice. With TestInterruptedDemoCleansUp, a slice starts one control
// plane for demos.
func TestEveryProofPasses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		mode     lab.Mode
		families ipfamily.Set // the demo's default if empty
		slices   []int
		policies bool
	}{
		{lab.NodeMode, "", []int{0, 5}, false}, {lab.NodeMode, ipfamily.OnlyIPv6, []int{4}, false}, {lab.NodeMode, "", []int{4, 9}, true},
		{lab.OperatorMode, "", []int{1, 7}, false}, {lab.OperatorMode, ipfamily.OnlyIPv6, []int{9}, false},
		{lab.PoolMode, "", []int{2, 6}, false},
		{lab.PortMode, "", []int{3, 8}, false},
	} {
		mode, families := tc.mode, cmp.Or(tc.families, familiesIn(tc.mode))
		name := fmt.Sprintf("%s/%s", mode, families)
		if tc.policies {
			name += "/policies"
		}
		t.Run(strings.Trim(name, "/"), func(t *testing.T) {
			t.Parallel()
			harness.Rotate(t, tc.slices...)
			harness.CanRun(t, mode)
			harness.Slot(t)
			var out bytes.Buffer
			o := options(t, &out)
			o.Lab.Mode, o.Lab.IPFamilies, o.Lab.NetworkPolicies = mode, tc.families, tc.policies
			proofs, omitted := len(proofsOf(lab.Options{Mode: mode, IPFamilies: families, NetworkPolicies: tc.policies})), 0
			if mode == lab.OperatorMode {
				if lacksVLANs() == nil {
					proofs += len(branchProofs)
				} else {
					omitted = 1
				}
			}
			prove(t, o, &out, proofs)
			if got := strings.Count(out.String(), "NOT RUN: "); got != omitted || omitted > 0 != strings.Contains(out.String(), "  NOT RUN    1\n") {
				t.Errorf("%d proofs NOT RUN, want %d, and the same number in the summary:\n%s", got, omitted, &out)
			}
		})
	}
}

func TestBranchesDemoNeedsIPv4(t *testing.T) {
	o := Options{Lab: lab.Options{Nodes: 2, Mode: lab.OperatorMode, VPCPorts: true, IPFamilies: ipfamily.OnlyIPv6}}
	if _, err := o.complete(); err == nil || !strings.Contains(err.Error(), "branches demo needs IPv4") {
		t.Errorf("complete() = %v, want error about IPv4", err)
	}
}

func TestNextStepsUseAddressFamilies(t *testing.T) {
	for families, want := range map[ipfamily.Set]string{
		"": " curl -s 203.0.113.10:8080/ ", ipfamily.Dual: " curl -s 203.0.113.10:8080/ ", ipfamily.OnlyIPv6: " curl -s 'http://[2001:db8:ffff::10]:8080/' ",
	} {
		var out bytes.Buffer
		PrintNext(&out, "vpclab", lab.Status{Dir: lab.DefaultDir, Mode: lab.NodeMode, Families: families, Nodes: []lab.NodeStatus{{Name: "node-1"}}})
		if !strings.Contains(out.String(), want) {
			t.Errorf("families %q: output lacks%s\n%s", families, want, &out)
		}
	}
}

// TestProofsDetectFailures breaks the subject of a proof: that proof fails, and the following ones pass.
func TestProofsDetectFailures(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		families    ipfamily.Set
		arg, failed string
		slices      []int
	}{
		"no SNAT":          {"", "--external-snat", "pod to internet", []int{0, 3, 6, 9}},
		"no cooling":       {"", "--cooling-period=0s", "address cools", []int{1, 4, 7}},
		"metadata for all": {ipfamily.OnlyIPv6, "--block-metadata=false", "metadata service", []int{2, 5, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly waits for replies that do not arrive
			harness.Rotate(t, tc.slices...)
			harness.Slot(t)
			var out bytes.Buffer
			o := options(t, &out)
			o.Lab.IPFamilies, o.Lab.DaemonArgs = tc.families, []string{tc.arg}
			err := Run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), tc.failed) {
				t.Errorf("Run() = %v, want failure of %q\n%s", err, tc.failed, &out)
			}
			if !strings.Contains(out.String(), "✓ pod to on-premises") || !strings.Contains(out.String(), "✗") {
				t.Errorf("output lacks a check mark for on-premises or a cross:\n%s", &out)
			}
		})
	}
}

func TestInterruptedDemoCleansUp(t *testing.T) {
	t.Parallel()
	// If TestEveryProofPasses runs in node mode, use one of the other modes, which have a control plane.
	turns := map[lab.Mode][]int{lab.NodeMode: {1, 2, 3, 6, 7, 8, 9}, lab.OperatorMode: {0}, lab.PoolMode: {4}, lab.PortMode: {5}}
	for _, mode := range lab.Modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			harness.Rotate(t, turns[mode]...)
			harness.CanRun(t, mode)
			harness.Slot(t)
			var out bytes.Buffer
			o := options(t, &out)
			o.Lab.Mode = mode
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			o.Out = writerFunc(func(b []byte) (int, error) {
				if bytes.Contains(b, []byte("✓")) { // in the middle of the demo
					interrupt()
				}
				return out.Write(b)
			})
			if err := Run(ctx, o); err == nil {
				t.Error("interrupted demo returned no error")
			}
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestStartFailureIsReported(t *testing.T) {
	var out bytes.Buffer
	o := options(t, &out)
	o.Lab.BinDir = t.TempDir() // no berthd to start
	err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "berthd") {
		t.Errorf("Run() = %v, want error about berthd", err)
	}
	_ = os.RemoveAll(o.Lab.Dir) // a lab that failed to start leaves its logs
}
