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

// stopFiles, each with a number of its own, stop the requests from the pod.
const stopFiles = "/tmp/stop-"

// pauseBetween two requests.
const pauseBetween = 50 * time.Millisecond

// during calls do while requests of the Service are made: from outside at a node's port, and from
// a pod by the Service's name. It fails if one is lost, and returns figures of both.
func (s *cluster) during(ctx context.Context, node string, do func() string) (figures string) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	file := fmt.Sprint(stopFiles, time.Now().UnixNano())
	families := s.lab.PodFamilies().Families()
	urls := s.nodePortURLs(must(s.lab.Node(node)))
	var requests sync.WaitGroup
	var lost []error
	outside, inside := 0, ""
	requests.Go(func() {
		for ctx.Err() == nil {
			one, end := context.WithTimeout(ctx, 5*time.Second)
			_, err := ns.Get(one, s.lab.OutsidePath(), urls[outside%len(urls)])
			end()
			if ctx.Err() != nil {
				return // stopped in the middle
			}
			outside++
			if err != nil {
				lost = append(lost, err)
			}
			_ = poll.Pause(ctx, time.Now(), pauseBetween)
		}
	})
	var insideErr error
	requests.Go(func() {
		insideErr = attempt(func() {
			var options []string
			for _, f := range families {
				options = append(options, curlFamily[f])
			}
			// One line a request: its status, or 000 and why.
			inside = s.sh(context.WithoutCancel(ctx), `while [ ! -e `+file+` ]; do for family in `+strings.Join(options, " ")+`; do curl $family -s -o /dev/null -m 5 -w '%{http_code} %{errormsg}\n' http://`+webName+`/hostname; sleep 0.05; done; done`)
		})
	})
	err := attempt(func() { figures = do() })
	stop()
	checkf(attempt(func() { s.sh(context.WithoutCancel(ctx), "touch "+file) }), "stop the requests from the pod")
	requests.Wait()
	if insideErr != nil {
		err = errors.Join(err, fmt.Errorf("requests from a pod: %w", insideErr))
	}
	check(err)
	statuses := strings.Split(strings.TrimSpace(inside), "\n")
	for _, status := range statuses {
		if !strings.HasPrefix(status, "200") {
			lost = append(lost, fmt.Errorf("a request from the pod: status %s", status))
		}
	}
	if len(lost) > 0 {
		fail("%d of %d requests were lost: %w", len(lost), outside+len(statuses), errors.Join(lost[:min(len(lost), enough)]...))
	}
	if outside == 0 || inside == "" {
		fail("%d requests from outside, %d from a pod: want some of both", outside, len(statuses))
	}
	return fmt.Sprintf("%s; %d requests from outside and %d from a pod, none lost", figures, outside, len(statuses))
}

// rolled replaces every pod of Berth by a rolling update while requests are made.
func rolled(ctx context.Context, st *stage) string {
	s := st.cluster
	return s.during(ctx, drainedNode, func() string {
		began := time.Now()
		what := []string{"daemonset/berthd"}
		if s.lab.Mode != lab.NodeMode {
			what = append(what, "deployment/berth-operator")
		}
		// A changed value, as a new version has. Helm has a new revision of it.
		change := map[string]any{"podAnnotations": map[string]any{"vpclab/rolled": began.Format(time.RFC3339)}}
		check(s.lab.Chart.Install(ctx, map[string]any{"daemon": change, "operator": change}))
		for _, w := range what {
			s.kubectl(ctx, "rollout", "status", w, "--namespace="+addons.Namespace, "--timeout=120s")
		}
		return fmt.Sprintf("%s in %.0f s", strings.Join(what, " and "), time.Since(began).Seconds())
	})
}

// drained empties a node while requests are made, and lets it have pods again.
func drained(ctx context.Context, st *stage) string {
	s := st.cluster
	return s.during(ctx, clientNode, func() string {
		s.kubectl(ctx, "drain", drainedNode, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
		check(s.lab.Kube.WaitDeployment(ctx, inDefault, webName))
		if left := s.podsOn(ctx, drainedNode); len(left) > 0 {
			fail("%s has pods after it was drained: %v", drainedNode, left)
		}
		s.kubectl(ctx, "uncordon", drainedNode)
		// Half of the pods go, so that others come back to the node.
		s.scale(ctx, webReplicas/2)
		s.scale(ctx, webReplicas)
		back := s.podsOn(ctx, drainedNode)
		if len(back) == 0 {
			fail("%s has no pods after it came back", drainedNode)
		}
		return fmt.Sprintf("%s empty, then %d pods again", drainedNode, len(back))
	})
}

// rebooted powers a node off and on: its tmpfs and the network state of its kernel
// are gone, its disk and its ENIs are not.
func rebooted(ctx context.Context, st *stage) string {
	s := st.cluster
	before, beat, began := s.podsOn(ctx, rebootedNode), s.ready(ctx, rebootedNode).LastHeartbeatTime, time.Now()
	check(s.lab.Reboot(ctx, rebootedNode))
	// Its pods are the same objects, with containers that started after the boot.
	await(ctx, "pods of "+rebootedNode, func() {
		if now := s.ready(ctx, rebootedNode).LastHeartbeatTime; now == beat {
			fail("its Node has not changed since")
		}
		for _, p := range s.pods(ctx) {
			if p.Spec.NodeName != rebootedNode || !slices.Contains(before, p.Name) {
				continue
			}
			if c := p.Status.ContainerStatuses; len(c) == 0 || c[0].State.Running == nil || c[0].State.Running.StartedAt.Time.Before(began.Truncate(time.Second)) || !c[0].Ready {
				fail("pod %s does not run again", p.Name)
			}
		}
	})
	check(errors.Join(s.lab.Kube.WaitNodesReady(ctx, s.lab.Nodes()...), s.lab.Kube.WaitDeployment(ctx, inDefault, webName)))
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

// agreed compares the pods' addresses with each other, with what the daemons report, and
// with what EC2 has for the node.
func agreed(ctx context.Context, s *stage) string {
	pods := 0
	await(ctx, "views of addresses", func() { pods = must(oracle.Addresses(ctx, s.lab, killedNode)) })
	return fmt.Sprintf("%d pods of %s, no duplicate, none held for a pod that is gone", pods, s.lab.PodFamilies())
}

// How much is shown of what a program printed.
const reportLines, reportWidth = 48, 240

// report shows nodes, pods, warnings and logs after a failure.
func (s *cluster) report(t *reporter) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"get", "nodes,pods", "--all-namespaces", "--output=wide", "--no-headers"},
		{"get", "events", "--all-namespaces", "--field-selector=type=Warning", "--sort-by=.lastTimestamp", "--no-headers"},
		{"logs", "--namespace=" + addons.Namespace, "--selector=app.kubernetes.io/name in (berthd, berth-operator)", "--tail=8", "--prefix", "--ignore-errors"},
	} {
		out, err := s.lab.Kube.Kubectl(ctx, args...)
		if err != nil {
			out = err.Error()
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		t.say("    kubectl %s:", strings.Join(args, " "))
		for _, line := range lines[max(0, len(lines)-reportLines):] {
			t.quote(line[:min(len(line), reportWidth)])
		}
	}
}
