package kubectl

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/lab/run/faults"
	"github.com/berthnet/berth/test/harness"
)

// A cluster moves from Cilium, back from the middle, and again to the end, while the command, a daemon of either system and the
// API server are killed at random steps. The seed is logged; BERTH_FAULT_SEED repeats it.
func TestMigrateFromCiliumUnderKills(t *testing.T) {
	harness.Rotate(t, 2, 7)
	m := newMovers(t, "kube-system/cilium", map[string]string{"k8s-app": "cilium"})
	m.createCiliumNodes(t)
	before := m.former("cilium").Spec
	f, err := faults.New()
	harness.OK(t, err)
	t.Log(f)
	m.troubled(t, f, []string{faults.APIServer, faults.Tool, ofDaemons}, "apply", "--nodes", "node-0")
	m.troubled(t, f, []string{faults.APIServer, faults.Tool, ofDaemons}, "rollback")
	if after := m.former("cilium").Spec; !equalJSON(t, before, after) {
		t.Errorf("DaemonSet after the rollback = %+v, want %+v", after, before)
	}
	m.traces(t)
	m.troubled(t, f, []string{faults.Tool, ofDaemons}, "apply")
	m.troubled(t, f, []string{faults.Tool}, "apply", "--finish")
	if at := m.daemons(connect.DaemonName); len(at) != movedNodes || len(m.daemons("cilium")) > 0 {
		t.Errorf("berthd runs on %v, Cilium's agent on %v", at, m.daemons("cilium"))
	}
	m.noFaults()
}

// ofDaemons ends a pod of one of both systems' DaemonSets.
const ofDaemons = "daemon"

// troubled runs a command again until it ends by itself. Each fault happens once, at a random line of its output.
func (m *movers) troubled(t *testing.T, f *faults.Faults, kinds []string, args ...string) {
	t.Helper()
	f.Reset()
	for range 10 {
		deck := f.Shuffled(append(f.Missing(kinds...), "")...)
		ctx, kill := context.WithCancel(t.Context())
		back := make(chan error, 1) // of the API server
		away := false
		var out bytes.Buffer
		cmd := New(Options{Config: harness.ControlPlane.Config(), Dial: m.dial(), Clock: hurried{}})
		cmd.SetArgs(append([]string{"migrate", migrate.Cilium}, args...))
		cmd.SetErr(io.Discard)
		cmd.SetOut(writer(func(text []byte) {
			out.Write(text)
			if len(deck) == 0 || ctx.Err() != nil || !strings.Contains(string(text), ": ") {
				return
			}
			fault := deck[0]
			switch fault {
			case faults.APIServer:
				away = true
				harness.OK(t, harness.ControlPlane.KillAPIServer())
				go func() { back <- harness.ControlPlane.StartAPIServer(context.WithoutCancel(t.Context())) }()
			case faults.Tool:
				kill()
			case ofDaemons:
				if !m.killDaemon(t, f) {
					return // the next line tries again
				}
			}
			if deck = deck[1:]; fault != "" {
				f.Did(fault)
			}
		}))
		code, err := ExitCode(cmd.ExecuteContext(ctx))
		killed := ctx.Err() != nil
		kill()
		if away {
			harness.OK(t, <-back)
		}
		if !killed && (err != nil || code != 0) {
			t.Fatalf("%s: exit code = %d, error = %v\n%s", strings.Join(args, " "), code, err, &out)
		}
		if !killed {
			t.Logf("%s: kills: %s", strings.Join(args, " "), f.Counts())
			if missing := f.Missing(kinds...); len(missing) > 0 {
				t.Errorf("%s: not killed: %v", strings.Join(args, " "), missing)
			}
			return
		}
	}
	t.Fatalf("%s does not end", strings.Join(args, " "))
}

type writer func([]byte)

func (w writer) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

// killDaemon ends a random pod of both systems' DaemonSets, and reports whether there was one, and an API server.
func (m *movers) killDaemon(t *testing.T, f *faults.Faults) bool {
	t.Helper()
	var pods corev1.PodList
	if err := m.c.List(t.Context(), &pods, client.InNamespace("kube-system")); err != nil {
		return false
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Labels[connect.NameLabel] == toolLabel })
	if len(pods.Items) == 0 {
		return false
	}
	return m.c.Delete(t.Context(), &pods.Items[f.IntN(len(pods.Items))], client.GracePeriodSeconds(0)) == nil
}
