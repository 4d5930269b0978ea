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

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/poll"
)

// pauseBetween is the pause between two requests.
const pauseBetween = 50 * time.Millisecond

// UnderCalls runs do while the client calls the Service by name, and a host outside calls a NodePort. A call without
// a reply is an error.
func (s *Cluster) UnderCalls(ctx context.Context, node string, do func()) (figures string, err error) {
	err = attempt(func() { figures = s.during(ctx, node, func() string { do(); return node }) })
	return figures, err
}

// during is UnderCalls for a function that returns figures.
func (s *Cluster) during(ctx context.Context, node string, do func() string) string {
	before := len(s.calls(ctx))
	urls := s.nodePortURLs(must(s.lab.Node(node)))
	var calling sync.WaitGroup
	defer calling.Wait()
	asks, stop := context.WithCancel(ctx)
	defer stop()
	var lost []error
	outside := 0
	calling.Go(func() {
		for asks.Err() == nil {
			one, end := context.WithTimeout(asks, 5*time.Second)
			_, err := ns.Get(one, s.lab.OutsidePath(), urls[outside%len(urls)])
			end()
			if asks.Err() != nil {
				return // interrupted by the end of the proof
			}
			outside++
			if err != nil {
				lost = append(lost, err)
			}
			_ = poll.Pause(asks, time.Now(), pauseBetween)
		}
	})
	figures := do()
	stop()
	calling.Wait()
	inside := s.calls(ctx)[before:]
	for _, status := range inside {
		if !strings.HasPrefix(status, "200 ") {
			lost = append(lost, fmt.Errorf("a call from the client: status %s", status))
		}
	}
	if outside == 0 || len(inside) == 0 {
		fail("%d calls from outside, %d from a pod: want some of each", outside, len(inside))
	}
	if len(lost) > 0 {
		fail("%d of %d calls were lost: %w", len(lost), outside+len(inside), errors.Join(lost[:min(len(lost), enough)]...))
	}
	return fmt.Sprintf("%s; %d calls from outside and %d from a pod, none lost", figures, outside, len(inside))
}

// calls returns the results of the client's calls since its start.
func (s *Cluster) calls(ctx context.Context) (results []string) {
	await(ctx, "read the client's calls", func() {
		results = strings.Split(strings.TrimSpace(s.kubectl(ctx, "exec", ClientName, "--", "cat", callFile)), "\n")
	})
	return results
}

// rolled updates every pod of Berth while the Service is called.
func rolled(ctx context.Context, st *stage) string {
	s := st.cluster
	return s.during(ctx, drainedNode, func() string {
		began := time.Now()
		what := []string{"daemonset/berthd"}
		if s.lab.Mode != lab.NodeMode || s.lab.NetworkPolicies {
			what = append(what, "deployment/berth-operator")
		}
		// Changes a value, as a new version would, so that Helm creates a new revision.
		change := map[string]any{"podAnnotations": map[string]any{"vpclab/rolled": began.Format(time.RFC3339)}}
		check(s.lab.Chart.Install(ctx, map[string]any{"daemon": change, "operator": change}))
		for _, w := range what {
			s.kubectl(ctx, "rollout", "status", w, "--namespace="+addons.Namespace, "--timeout=120s")
		}
		return fmt.Sprintf("%s in %.0f s", strings.Join(what, " and "), time.Since(began).Seconds())
	})
}

// drained drains a node while the Service is called, and uncordons it.
func drained(ctx context.Context, st *stage) string {
	s := st.cluster
	return s.during(ctx, clientNode, func() string {
		s.kubectl(ctx, "drain", drainedNode, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
		check(s.lab.Kube.WaitDeployment(ctx, inDefault, WebName))
		if left := s.podsOn(ctx, drainedNode); len(left) > 0 {
			fail("%s has pods after it was drained: %v", drainedNode, left)
		}
		s.kubectl(ctx, "uncordon", drainedNode)
		// Scales down and up, so that pods are scheduled to the node again.
		s.scale(ctx, webReplicas/2)
		s.scale(ctx, webReplicas)
		back := s.podsOn(ctx, drainedNode)
		if len(back) == 0 {
			fail("%s has no pods after it came back", drainedNode)
		}
		return fmt.Sprintf("%s empty, then %d pods again", drainedNode, len(back))
	})
}

// rebooted powers a node off and on: its tmpfs and its kernel's network state are lost, its disk and its ENIs are not.
func rebooted(ctx context.Context, st *stage) string {
	s := st.cluster
	before, beat, began := s.podsOn(ctx, rebootedNode), s.ready(ctx, rebootedNode).LastHeartbeatTime, time.Now()
	check(s.lab.Reboot(ctx, rebootedNode))
	// The Pod objects are the same, but their containers were started after the boot.
	await(ctx, "pods of "+rebootedNode, func() {
		if now := s.ready(ctx, rebootedNode).LastHeartbeatTime; now == beat {
			fail("its Node has had no heartbeat since")
		}
		if s.daemonsRan(ctx)[rebootedNode].Before(began.Truncate(time.Second)) {
			fail("berthd has not started again")
		}
		for _, p := range s.pods(ctx) {
			if p.Spec.NodeName != rebootedNode || !slices.Contains(before, p.Name) {
				continue
			}
			if c := p.Status.ContainerStatuses; len(c) == 0 || c[0].State.Running == nil || c[0].State.Running.StartedAt.Time.Before(began.Truncate(time.Second)) || !c[0].Ready {
				fail("pod %s is not running again", p.Name)
			}
		}
	})
	check(errors.Join(s.lab.Kube.WaitNodesReady(ctx, s.lab.Nodes()...), s.lab.Kube.WaitDeployment(ctx, inDefault, WebName)))
	if ready, ran := s.readySince(ctx, rebootedNode), s.daemonsRan(ctx)[rebootedNode]; ready.Before(ran) {
		fail("%s was Ready at %v, before berthd's start at %v", rebootedNode, ready, ran)
	}
	return fmt.Sprintf("%s and its %d pods are back after %.0f s", rebootedNode, len(before), time.Since(began).Seconds())
}

// killed powers a node off for good.
func killed(ctx context.Context, st *stage) string {
	s := st.cluster
	began, noticed := time.Now(), time.Duration(0)
	check(s.lab.PowerOff(killedNode))
	await(ctx, "pods elsewhere", func() {
		if s.ready(ctx, killedNode).Status == corev1.ConditionTrue {
			fail("node %s is Ready", killedNode)
		}
		if noticed == 0 {
			noticed = time.Since(began)
		}
		running := 0
		for _, p := range s.pods(ctx) {
			if p.Spec.NodeName != killedNode && !conditionTime(p, corev1.PodReady).IsZero() {
				running++
			}
		}
		if running < webReplicas {
			fail("%d of %d pods run elsewhere", running, webReplicas)
		}
	})
	took := time.Since(began)
	for _, n := range s.nodes {
		if n.Name != killedNode {
			s.askNode(ctx, n)
		}
	}
	return fmt.Sprintf("noticed after %.0f s, %d pods Ready elsewhere after %.0f s", noticed.Seconds(), webReplicas, took.Seconds())
}

// agreed compares the pods' addresses with each other, with the daemons' reports, and with EC2.
func agreed(ctx context.Context, s *stage) string {
	pods := 0
	await(ctx, "views of addresses", func() { pods = must(oracle.Addresses(ctx, s.lab, killedNode)) })
	return fmt.Sprintf("%d pods of %s, no duplicate, none held for a deleted pod", pods, s.lab.PodFamilies())
}

// Report prints nodes, pods, warnings and Berth's logs.
func (s *Cluster) Report(show func(line string)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "nodes,pods", "--all-namespaces", "--output=wide", "--no-headers"},
		{"get", "events", "--all-namespaces", "--field-selector=type=Warning", "--sort-by=.lastTimestamp", "--no-headers"},
		{"logs", "--namespace=" + addons.Namespace, "--selector=app.kubernetes.io/name in (berthd, berth-operator)", "--tail=12", "--prefix", "--ignore-errors"},
	} {
		const most, width = 48, 240
		out, _ := s.lab.Kube.Kubectl(ctx, args...) // out contains the error
		lines := strings.Split(strings.TrimSpace(out), "\n")
		show("kubectl " + strings.Join(args, " ") + ":")
		for _, line := range lines[max(0, len(lines)-most):] {
			show("  " + line[:min(len(line), width)])
		}
	}
}
