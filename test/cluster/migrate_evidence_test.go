//go:build e2e

package cluster

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/test/harness"
)

// recorders are the programs whose output tells why a connection of a node's pods broke.
var recorders = map[string][]string{
	"conntrack": {"conntrack", "-E", "-o", "timestamp,id", "-p", "tcp"}, // a reset is CLOSE
	"monitor":   {"ip", "-ts", "monitor", "rule", "route", "link"},
}

// record starts the recorders of all nodes, until the end of the test.
func (m *mover) record(t *testing.T) {
	t.Helper()
	for _, n := range m.Nodes() {
		for name, args := range recorders {
			f, err := os.Create(m.recorded(name, n.Name))
			harness.OK(t, err)
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stdout, cmd.Stderr = f, f
			harness.OK(t, ns.Do(n.Netns, cmd.Start))
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				_ = f.Close()
			})
		}
	}
}

func (m *mover) recorded(name, node string) string {
	return filepath.Join(m.dir, name+"-"+node+".log")
}

// evidence logs what tells why containers of a pod ended: how they ended, the pod's events, what they said, and around that
// time the kubelet's log, the connections of the pod's address, and changes of the node's links, routes and rules.
func (m *mover) evidence(t *testing.T, namespace, name string) {
	t.Helper()
	var pod corev1.Pod
	if err := m.Kube.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
		t.Logf("%s/%s: %v", namespace, name, err)
		return
	}
	if out, err := m.Kube.Kubectl(t.Context(), "events", "--namespace="+namespace, "--for=pod/"+name); err == nil {
		t.Logf("events of %s:\n%s", name, out)
	}
	for _, c := range pod.Status.ContainerStatuses {
		end := c.LastTerminationState.Terminated
		if end == nil {
			continue
		}
		t.Logf("%s: container %s ended at %s: exit code %d, signal %d, %s %s", name, c.Name, end.FinishedAt.Format(time.TimeOnly), end.ExitCode, end.Signal, end.Reason, end.Message)
		if said, err := m.Kube.Kubectl(t.Context(), "logs", "--previous", "--tail=20", "--namespace="+namespace, name, "--container="+c.Name); err == nil {
			t.Logf("%s: %s said before: %s", name, c.Name, said)
		}
		from, to := end.FinishedAt.Add(-8*time.Second), end.FinishedAt.Add(2*time.Second)
		m.excerpt(t, m.recorded("conntrack", pod.Spec.NodeName), pod.Status.PodIP, from, to)
		m.excerpt(t, m.recorded("monitor", pod.Spec.NodeName), "", from, to)
		if h, err := m.Machine(pod.Spec.NodeName); err == nil {
			m.excerpt(t, filepath.Join(h.Logs, "kubelet.log"), name, from, to)
		}
	}
}

// excerpt logs the lines of a file with a word whose time is in a range, and those that follow without a time.
func (m *mover) excerpt(t *testing.T, path, word string, from, to time.Time) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Log(err)
		return
	}
	defer func() { _ = f.Close() }()
	var lines []string
	in := false
	for s := bufio.NewScanner(f); s.Scan(); {
		if at, ok := timeOf(s.Text(), from); ok {
			in = at.After(from) && at.Before(to)
		}
		if in && strings.Contains(s.Text(), word) {
			lines = append(lines, s.Text())
		}
	}
	const most = 120
	t.Logf("%s, %d lines:\n%s", filepath.Base(path), len(lines), strings.Join(lines[max(0, len(lines)-most):], "\n"))
}

// timeOf reads the time at the beginning of a line of conntrack, ip monitor, or klog, whose times have no year.
func timeOf(line string, about time.Time) (time.Time, bool) {
	word, rest, _ := strings.Cut(strings.TrimPrefix(line, "["), " ")
	clock, _, _ := strings.Cut(rest, " ")
	for _, try := range []struct{ layout, text string }{
		{"2006-01-02T15:04:05.999999", strings.TrimSuffix(word, "]")},
		{"20060102 15:04:05.999999", fmt.Sprint(about.Local().Year()) + strings.TrimLeft(word, "IWEF") + " " + clock},
	} {
		if at, err := time.ParseInLocation(try.layout, try.text, time.Local); err == nil {
			return at, true
		}
	}
	var sec, micro int64
	if n, _ := fmt.Sscanf(strings.TrimSuffix(word, "]"), "%d.%d", &sec, &micro); n == 2 {
		return time.Unix(sec, micro*1000), true
	}
	return time.Time{}, false
}
