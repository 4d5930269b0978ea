package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/run/poll"
)

// requests are calls of the Service that go on until they are stopped: from outside by
// a node's port, and from a pod by the Service's name.
type requests struct {
	stage *stage
	stop  context.CancelFunc
	file  string // ends those from the pod
	done  sync.WaitGroup

	mu      sync.Mutex // guards all below
	outside int
	failed  []error

	inside    string // what the pod said
	insideErr error
}

// stopFiles, each with a number of its own, end calls from the pod: one that is made
// before the calls begin ends them too.
const stopFiles = "/tmp/stop-"

// call begins to ask a node from outside, and the Service from the client.
func (s *stage) call(ctx context.Context, node string) *requests {
	ctx, cancel := context.WithCancel(ctx)
	r := &requests{stage: s, stop: cancel, file: fmt.Sprint(stopFiles, time.Now().UnixNano())}
	urls := s.nodePortURLs(node)
	r.done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			one, end := context.WithTimeout(ctx, 5*time.Second)
			_, err := ns.Get(one, s.lab.OutsidePath(), urls[i%len(urls)])
			end()
			if ctx.Err() != nil {
				return // told to stop in the middle
			}
			r.mu.Lock()
			r.outside++
			if err != nil {
				r.failed = append(r.failed, err)
			}
			r.mu.Unlock()
			_ = poll.Pause(ctx, time.Now(), callPause)
		}
	})
	r.done.Go(func() {
		// One line a call: its status, or 000 and why.
		r.inside, r.insideErr = s.exec(context.WithoutCancel(ctx), `while [ ! -e `+r.file+` ]; do for family in `+strings.Join(s.curlFamilies(), " ")+`; do curl $family -s -o /dev/null -m 5 -w '%{http_code} %{errormsg}\n' http://`+webName+`/hostname; sleep 0.05; done; done`)
	})
	return r
}

// callPause is the time between two calls.
const callPause = 50 * time.Millisecond

// end stops the calls, and says how many there were. Any that failed is an error.
func (r *requests) end(ctx context.Context) (string, error) {
	r.stop()
	_, err := r.stage.exec(context.WithoutCancel(ctx), "touch "+r.file)
	if err != nil {
		return "", fmt.Errorf("stop the calls from the pod: %w", err)
	}
	r.done.Wait()
	if r.insideErr != nil {
		return "", fmt.Errorf("calls from a pod: %w", r.insideErr)
	}
	statuses := strings.Split(strings.TrimSpace(r.inside), "\n")
	lost := len(r.failed)
	for _, status := range statuses {
		if !strings.HasPrefix(status, "200") {
			lost++
			r.failed = append(r.failed, fmt.Errorf("a call from the pod: status %s", status))
		}
	}
	if lost > 0 {
		return "", fmt.Errorf("%d of %d requests were lost: %w", lost, r.outside+len(statuses), errors.Join(r.failed[:min(len(r.failed), enough)]...))
	}
	if r.outside == 0 || r.inside == "" {
		return "", fmt.Errorf("%d requests from outside, %d from a pod: want some of both", r.outside, len(statuses))
	}
	return fmt.Sprintf("%d requests from outside and %d from a pod, none lost", r.outside, len(statuses)), nil
}

// during makes requests while do runs, and returns what they and do say.
func (s *stage) during(ctx context.Context, node string, do func() (string, error)) (string, error) {
	r := s.call(ctx, node)
	said, err := do()
	told, lost := r.end(ctx)
	if err = errors.Join(err, lost); err != nil {
		return "", err
	}
	return said + "; " + told, nil
}

// rolled replaces every pod of Berth by a rolling update while requests are made, and
// has pods made meanwhile.
func rolled(ctx context.Context, s *stage) (string, error) {
	return s.during(ctx, drainedNode, func() (string, error) {
		began := time.Now()
		what := []string{"daemonset/berthd"}
		if s.lab.Mode != lab.NodeMode {
			what = append(what, "deployment/berth-operator")
		}
		// A changed value, as a new version has. Helm has a new revision of it.
		mark := map[string]any{"podAnnotations": map[string]any{"vpclab/rolled": began.Format(time.RFC3339)}}
		if err := s.lab.InstallBerth(ctx, map[string]any{"daemon": mark, "operator": mark}); err != nil {
			return "", err
		}
		for _, w := range what {
			if _, err := s.lab.Kubectl(ctx, "rollout", "status", w, "--namespace="+addons.Namespace, "--timeout=120s"); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%s in %.0f s", strings.Join(what, " and "), time.Since(began).Seconds()), nil
	})
}

// drained empties a node while requests are made, and lets it have pods again.
func drained(ctx context.Context, s *stage) (string, error) {
	return s.during(ctx, clientNode, func() (string, error) {
		if _, err := s.lab.Kubectl(ctx, "drain", drainedNode, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s"); err != nil {
			return "", err
		}
		if err := s.lab.WaitDeployment(ctx, inDefault, webName); err != nil {
			return "", err
		}
		moved, err := s.podsOn(ctx, drainedNode)
		if err != nil || len(moved) > 0 {
			return "", errors.Join(err, fmt.Errorf("%s has pods after it was drained: %v", drainedNode, moved))
		}
		if _, err := s.lab.Kubectl(ctx, "uncordon", drainedNode); err != nil {
			return "", err
		}
		// Half of the pods go, so that others come back to the node.
		for _, replicas := range []int{webReplicas / 2, webReplicas} {
			if err := s.scaleWeb(ctx, replicas); err != nil {
				return "", err
			}
		}
		back, err := s.podsOn(ctx, drainedNode)
		if err != nil || len(back) == 0 {
			return "", errors.Join(err, fmt.Errorf("%s has no pods after it came back", drainedNode))
		}
		return fmt.Sprintf("%s empty, then %d pods again", drainedNode, len(back)), nil
	})
}

// podsOn are the names of the Deployment's pods on a node.
func (s *stage) podsOn(ctx context.Context, node string) ([]string, error) {
	pods, err := s.webPods(ctx)
	var names []string
	for _, p := range pods {
		if p.Spec.NodeName == node {
			names = append(names, p.Name)
		}
	}
	return names, err
}

// rebooted turns a node off and on: its tmpfs and what its kernel knew of the network
// are gone, its disk and its ENIs are not.
func rebooted(ctx context.Context, s *stage) (string, error) {
	before, err := s.podsOn(ctx, rebootedNode)
	if err != nil {
		return "", err
	}
	beat, err := s.heartbeat(ctx, rebootedNode)
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := s.lab.Reboot(ctx, rebootedNode); err != nil {
		return "", err
	}
	// Its pods are the same objects, with containers that began after the boot.
	err = poll.Until(ctx, func() error {
		if now, err := s.heartbeat(ctx, rebootedNode); err != nil || now == beat {
			return errors.Join(err, fmt.Errorf("the Node of %s has not changed since", rebootedNode))
		}
		pods, err := s.webPods(ctx)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if p.Spec.NodeName != rebootedNode || !slices.Contains(before, p.Name) {
				continue
			}
			if c := p.Status.ContainerStatuses; len(c) == 0 || c[0].State.Running == nil || c[0].State.Running.StartedAt.Time.Before(began.Truncate(time.Second)) || !c[0].Ready {
				return fmt.Errorf("pod %s does not run again", p.Name)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := errors.Join(s.lab.WaitNodesReady(ctx), s.lab.WaitDeployment(ctx, inDefault, webName)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s and its %d pods are back after %.0f s", rebootedNode, len(before), time.Since(began).Seconds()), nil
}

// heartbeat is a Node's heartbeat, which tells whether its kubelet spoke since.
func (s *stage) heartbeat(ctx context.Context, name string) (time.Time, error) {
	node := &corev1.Node{}
	if err := s.lab.Kube.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return time.Time{}, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime.Time, nil
		}
	}
	return time.Time{}, fmt.Errorf("node %s has no condition Ready", name)
}

// killed pulls a node's plug for good.
func killed(ctx context.Context, s *stage) (string, error) {
	began := time.Now()
	if err := s.lab.PullPlug(killedNode); err != nil {
		return "", err
	}
	var noticed time.Duration
	err := poll.Until(ctx, func() error {
		if _, err := s.readySince(ctx, killedNode); err == nil {
			return fmt.Errorf("node %s counts as Ready", killedNode)
		}
		if noticed == 0 {
			noticed = time.Since(began)
		}
		pods, err := s.webPods(ctx)
		if err != nil {
			return err
		}
		running := 0
		for _, p := range pods {
			if p.Spec.NodeName != killedNode && !conditionTime(p, corev1.PodReady).IsZero() {
				running++
			}
		}
		if running < webReplicas {
			return fmt.Errorf("%d of %d pods run elsewhere", running, webReplicas)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	took := time.Since(began)
	for _, n := range s.nodes {
		if n.Name == killedNode {
			continue
		}
		for _, url := range s.nodePortURLs(n.Name) {
			if _, err := ns.Get(ctx, s.lab.OutsidePath(), url); err != nil {
				return "", fmt.Errorf("ask %s from outside: %w", n.Name, err)
			}
		}
	}
	return fmt.Sprintf("noticed after %.0f s, %d pods Ready elsewhere after %.0f s", noticed.Seconds(), webReplicas, took.Seconds()), nil
}

// agreed compares the pods' addresses with each other, with what the daemons say, and
// with what EC2 has for the node.
func agreed(ctx context.Context, s *stage) (string, error) {
	var figures string
	err := poll.Until(ctx, func() (err error) {
		figures, err = s.agree(ctx)
		return err
	})
	return figures, err
}

func (s *stage) agree(ctx context.Context) (string, error) {
	pods, err := s.lab.AddressesAgree(ctx, killedNode)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods of %s, no duplicate, none held for a pod that is gone", pods, s.lab.PodFamilies()), nil
}

// How much is shown of what a program printed.
const toldLines, toldWidth = 48, 240

// tellCluster shows what the cluster says of pods that do not run, after a failure.
func (s *stage) tellCluster(t *reporter) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"get", "nodes,pods", "--all-namespaces", "--output=wide", "--no-headers"},
		{"get", "events", "--all-namespaces", "--field-selector=type=Warning", "--sort-by=.lastTimestamp", "--no-headers"},
		{"logs", "--namespace=" + addons.Namespace, "--selector=app.kubernetes.io/name in (berthd, berth-operator)", "--tail=8", "--prefix", "--ignore-errors"},
	} {
		out, err := s.lab.Kubectl(ctx, args...)
		if err != nil {
			out = err.Error()
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		t.say("    kubectl %s:", strings.Join(args, " "))
		for _, line := range lines[max(0, len(lines)-toldLines):] {
			t.quote(line[:min(len(line), toldWidth)])
		}
	}
}
