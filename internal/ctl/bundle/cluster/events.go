package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
)

// event is an Event as one line.
type event struct {
	at   time.Time
	text string
}

// events adds the events that concern networks: those of nodes, of Berth's objects and pods,
// and of pods whose sandbox failed. Of all others it counts kinds and reasons only.
func (k *Cluster) events(ctx context.Context, s *archive.Sink) error {
	var shown []event
	others := map[string]int{}
	listErr := each(ctx, k, kind{path: "/api/v1", resource: "events"}, func(_ metav1.TypeMeta, e corev1.Event) error {
		at := eventTime(e)
		if !isOfNetworks(e) {
			others[e.InvolvedObject.Kind+" "+e.Reason] += max(1, int(e.Count))
			return nil
		}
		shown = append(shown, event{at, fmt.Sprintf("%s %s %s %s/%s %s: %s (%dx, from %s %s)", at.UTC().Format(time.RFC3339), e.Type, e.InvolvedObject.Kind,
			e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Reason, strings.ReplaceAll(strings.TrimSpace(e.Message), "\n", " "), max(1, e.Count),
			cmp.Or(e.Source.Component, e.ReportingController), cmp.Or(e.Source.Host, e.ReportingInstance))})
		return nil
	})
	slices.SortFunc(shown, func(a, b event) int { return a.at.Compare(b.at) })
	var b, counts bytes.Buffer
	for _, e := range shown {
		fmt.Fprintln(&b, e.text)
	}
	for _, what := range slices.SortedFunc(maps.Keys(others), func(a, b string) int { return cmp.Or(others[b]-others[a], strings.Compare(a, b)) }) {
		fmt.Fprintf(&counts, "%6d %s\n", others[what], what)
	}
	return errors.Join(listErr, s.Log("cluster/events.txt", &b), s.Text("cluster/events-others.txt", &counts))
}

// reasons are the reasons of pods' events that concern sandboxes and networks.
var reasons = []string{"FailedCreatePodSandBox", "FailedKillPod", "NetworkNotReady", "SandboxChanged", "FailedScheduling", "TaintManagerEviction", "NodeNotReady"}

func isOfNetworks(e corev1.Event) bool {
	switch kind := e.InvolvedObject.Kind; {
	case kind == "Node" || strings.HasPrefix(e.InvolvedObject.APIVersion, "berth.dev/"):
		return true
	case strings.Contains(e.InvolvedObject.Name, "berth"):
		return true
	case strings.Contains(cmp.Or(e.Source.Component, e.ReportingController), "berth"):
		return true
	case kind == "Pod":
		return slices.Contains(reasons, e.Reason)
	}
	return false
}

func eventTime(e corev1.Event) time.Time {
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time} {
		if !t.IsZero() {
			return t
		}
	}
	return e.CreationTimestamp.Time
}

// podsOfNodes adds a line for each pod on the selected nodes: its node, addresses and state,
// but nothing from its spec that could be confidential.
func (k *Cluster) podsOfNodes(ctx context.Context, s *archive.Sink) error {
	var b bytes.Buffer
	err := each(ctx, k, kind{path: "/api/v1", resource: "pods"}, func(_ metav1.TypeMeta, p corev1.Pod) error {
		if !k.wanted(p.Spec.NodeName) && (k.All || len(k.Nodes) > 0) {
			return nil
		}
		var ips []string
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		fmt.Fprintf(&b, "%s %s/%s uid=%s phase=%s ready=%s addresses=%s hostNetwork=%t created=%s deleted=%s pool=%q\n",
			cmp.Or(p.Spec.NodeName, "-"), p.Namespace, p.Name, p.UID, p.Status.Phase, ready(p), strings.Join(ips, ","), p.Spec.HostNetwork,
			p.CreationTimestamp.UTC().Format(time.RFC3339), deleted(p), p.Annotations["berth.dev/pool"])
		return nil
	})
	return errors.Join(err, s.Text("cluster/pods.txt", &b))
}

func ready(p corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return string(c.Status)
		}
	}
	return string(corev1.ConditionUnknown)
}

func deleted(p corev1.Pod) string {
	if p.DeletionTimestamp == nil {
		return ""
	}
	return p.DeletionTimestamp.UTC().Format(time.RFC3339)
}
