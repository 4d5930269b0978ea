//go:build e2e

package cluster

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/run/faults"
	"github.com/berthnet/berth/test/harness"
)

// ofDaemon kills a daemon of one of both systems.
const ofDaemon = "daemon"

// troubled runs a command until it succeeds, while at each second line that it prints the API server, the tool itself or a
// daemon of one of both systems is killed. An outage of the API server ends no call.
func (m *mover) troubled(t *testing.T, args ...string) {
	t.Helper()
	kinds := []string{faults.APIServer, faults.Tool, ofDaemon, "", "", ""}
	for calls := 0; ; calls++ {
		deck := m.faults.Shuffled(slices.Concat(kinds, kinds)...)
		if calls == 0 { // each kind at least once
			deck = append([]string{ofDaemon, faults.APIServer, "", faults.Tool}, deck...)
		}
		err := m.call(t, deck, args...)
		if err == nil {
			break
		}
		if !errors.Is(err, errToolKilled) {
			t.Fatal(err)
		}
		if calls > 30 {
			t.Fatalf("%s does not end", args[0])
		}
	}
	t.Logf("kills: %s", m.faults.Counts())
	arriving := daemonName
	if args[0] == "rollback" {
		arriving = formerName
	}
	m.kubectl(t, "rollout", "status", "daemonset/"+arriving, "--namespace="+addons.Namespace, fmt.Sprintf("--timeout=%.0fs", soon.Seconds()))
	for _, kind := range m.faults.Missing(faults.APIServer, faults.Tool, formerName, daemonName) {
		t.Errorf("%s was not killed", kind)
	}
}

// half moves one node, and kills the tool while the other one belongs to neither system.
func (m *mover) half(t *testing.T) {
	m.troubled(t, "apply", "--nodes="+brokenNode)
	m.served(t, formerName, calmNode, daemonName, brokenNode)
	if err := m.call(t, slices.Repeat([]string{atNeither}, 100), "apply"); !errors.Is(err, errToolKilled) {
		t.Errorf("apply ended before a node belonged to neither system: %v", err)
	}
}

// atNeither kills the tool at the line which says that a node belongs to neither system.
const atNeither = "tool, at belongs to neither"

var errToolKilled = errors.New("the tool was killed")

// call runs kubectl berth migrate once. At each line of its output the next fault of the deck happens.
func (m *mover) call(t *testing.T, deck []string, args ...string) error {
	t.Helper()
	ctx := harness.Deadline(t, 3*soon)
	cmd := exec.CommandContext(ctx, filepath.Join(m.KubeAssets, "kubectl"), append([]string{"berth", "--quiet", "migrate", migrate.AmazonVPCCNI}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+m.Kube.Kubeconfig, "HOME="+m.dir)
	out, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	harness.OK(t, cmd.Start())
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		ended <- errors.Join(err, w.Close())
	}()
	killed := false
	lines := []string{"kubectl berth migrate " + strings.Join(args, " ")}
	for s := bufio.NewScanner(out); s.Scan(); {
		lines = append(lines, time.Now().Format("15:04:05 ")+s.Text())
		if len(deck) == 0 || killed || !strings.Contains(s.Text(), ": ") { // the table at the end is no step
			continue
		}
		fault := deck[0]
		deck = deck[1:]
		if _, at, ok := strings.Cut(fault, ", at "); ok {
			if fault = ""; strings.Contains(s.Text(), at) {
				fault = faults.Tool
			}
		} else if m.faults.Count(faults.Tool) > 0 && (strings.HasSuffix(s.Text(), ": is back") || strings.HasSuffix(s.Text(), "moved and verified")) {
			fault = ofDaemon // both systems run, or one on all nodes
		}
		if fault != "" {
			lines = append(lines, "  kill: "+fault)
		}
		switch fault {
		case faults.APIServer:
			m.faults.Did(fault)
			harness.OK(t, m.Kube.KillAPIServer())
			harness.OK(t, m.Kube.StartAPIServer(harness.Deadline(t, soon)))
		case faults.Tool:
			m.faults.Did(fault)
			killed = true
			_ = cmd.Process.Kill()
		case ofDaemon:
			m.killDaemon(t)
		}
	}
	err := <-ended
	t.Log(strings.Join(lines, "\n"))
	if killed {
		return errToolKilled
	}
	if err != nil {
		return fmt.Errorf("%s: %w", lines[0], err)
	}
	return nil
}

// killDaemon kills a container of one of both systems' daemons: of that which was killed less often.
func (m *mover) killDaemon(t *testing.T) {
	t.Helper()
	type running struct{ system, node, container string }
	var all []running
	for _, name := range []string{formerName, daemonName} {
		for node, p := range m.daemonPods(t, name) {
			for _, c := range p.Status.ContainerStatuses {
				if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.State.Running != nil {
					all = append(all, running{name, node, id})
				}
			}
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(x, y running) int { return cmp.Compare(x.node+x.container, y.node+y.container) })
	m.faults.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	one := slices.MinFunc(all, func(x, y running) int { return cmp.Compare(m.faults.Count(x.system), m.faults.Count(y.system)) })
	h, err := m.Machine(one.node)
	harness.OK(t, err)
	if _, err = h.Run(t.Context(), "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", one.container); err == nil { // it may have ended meanwhile
		m.faults.Did(one.system)
	}
}
