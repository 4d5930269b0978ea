package kubectl

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// progressName is the ConfigMap with the progress of a migration, in Berth's namespace.
const progressName = "berth-migration"

// Keys of the ConfigMap.
const (
	progressKey = "migration"
	nodeKey     = "node." // and the name of a Node
)

// progress is the recorded state of a migration for the whole cluster.
type progress struct {
	From      string `json:"from"`
	DaemonSet string `json:"daemonSet"`
	// Original contains the changed parts of the DaemonSet as they were before.
	Original *original `json:"original,omitempty"`
}

// original is the part of a DaemonSet that a migration changes.
type original struct {
	Affinity       json.RawMessage `json:"affinity,omitempty"`
	UpdateStrategy json.RawMessage `json:"updateStrategy,omitempty"`
}

// daemonSet is a DaemonSet, and its changed parts exactly as the API server has them.
type daemonSet struct {
	appsv1.DaemonSet
	original original
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *daemonSet) UnmarshalJSON(text []byte) error {
	var raw struct {
		Spec struct {
			UpdateStrategy json.RawMessage `json:"updateStrategy"`
			Template       struct {
				Spec struct {
					Affinity json.RawMessage `json:"affinity"`
				} `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return err
	}
	d.original = original{raw.Spec.Template.Spec.Affinity, raw.Spec.UpdateStrategy}
	return json.Unmarshal(text, &d.DaemonSet)
}

func daemonSetPath(namespace, name string) string {
	return "/apis/apps/v1/namespaces" + join(namespace, "daemonsets", name)
}

// seen is an observation with the objects that actions need.
type seen struct {
	rollout.State
	former, berthd *daemonSet // nil if they do not exist
	config         *corev1.ConfigMap
	progress       progress
}

// Observe implements rollout.Cluster.
func (m *migration) Observe(ctx context.Context) (rollout.State, error) {
	s, err := m.observe(ctx, false)
	if err != nil {
		return rollout.State{}, err
	}
	return s.State, nil
}

// observe reads the cluster. Pods are read for nodes under way, or for all.
func (m *migration) observe(ctx context.Context, everyPod bool) (s *seen, err error) {
	s = &seen{}
	if err := m.readProgress(ctx, s); err != nil {
		return nil, err
	}
	if err := m.readDaemonSets(ctx, s); err != nil {
		return nil, err
	}
	a := &api{rest: m.api.rest} // failed reads of this observation
	nodes := a.nodes(ctx)
	of := func(d *daemonSet) map[string]rollout.Daemon { return m.daemonsOf(ctx, a, d) }
	former, berthd := of(s.former), of(s.berthd)
	formerControls, berthControls := names(ctx, a, m.from.controls), names(ctx, a, networksPath)
	tools := m.toolPods(ctx, a)
	for i := range nodes {
		k := &nodes[i]
		n := rollout.Node{
			Name: k.Name, Label: k.Labels[rollout.Label], Ready: isReady(k), Cordoned: k.Spec.Unschedulable,
			Former: cmp.Or(former[k.Name], rollout.Absent), Berthd: cmp.Or(berthd[k.Name], rollout.Absent),
			Tainted:        slices.ContainsFunc(k.Spec.Taints, m.from.isTaint),
			FormerControls: formerControls[k.Name], BerthControls: berthControls[k.Name],
		}
		if s.config != nil {
			if text, has := s.config.Data[nodeKey+k.Name]; has {
				if err := json.Unmarshal([]byte(text), &n.Record); err != nil {
					return nil, fmt.Errorf("ConfigMap %s/%s: data[%s]: %w", m.daemons, progressName, nodeKey+k.Name, err)
				}
			}
		}
		if under := n.Record.Direction != "" && !n.Record.Verified; everyPod || under {
			n.Pods = podsOfNode(list[corev1.Pod](ctx, a, "pods of Node "+k.Name, podsOfAll, query{"fieldSelector": "spec.nodeName=" + k.Name}))
		}
		if pod, has := tools[k.Name]; has {
			if n.Tool, err = m.toolState(ctx, &pod); err != nil {
				return nil, err
			}
		}
		s.Nodes = append(s.Nodes, n)
	}
	if err := a.err(); err != nil {
		return nil, err
	}
	slices.SortFunc(s.Nodes, func(x, y rollout.Node) int { return cmp.Compare(x.Name, y.Name) })
	return s, nil
}

func (m *migration) readProgress(ctx context.Context, s *seen) error {
	var c corev1.ConfigMap
	err := into(ctx, m.api.rest.Get().AbsPath(m.configPath()), &c)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read ConfigMap %s/%s: %w", m.daemons, progressName, err)
	}
	s.config = &c
	if err := json.Unmarshal([]byte(c.Data[progressKey]), &s.progress); err != nil {
		return fmt.Errorf("ConfigMap %s/%s: data[%s]: %w", m.daemons, progressName, progressKey, err)
	}
	s.From = s.progress.From
	if s.From == m.from.name && s.progress.DaemonSet != m.formerNamespace+"/"+m.formerName {
		return fmt.Errorf("the migration that was begun is of DaemonSet %s, not of %s/%s: use --daemonset", s.progress.DaemonSet, m.formerNamespace, m.formerName)
	}
	return nil
}

func (m *migration) readDaemonSets(ctx context.Context, s *seen) (err error) {
	if s.former, err = m.daemonSet(ctx, m.formerNamespace, m.formerName); err != nil {
		return err
	}
	if s.berthd, err = m.daemonSet(ctx, m.daemons, connect.DaemonName); err != nil {
		return err
	}
	s.Former, s.Berthd = rollout.DaemonSet{Name: m.formerNamespace + "/" + m.formerName, Exists: s.former != nil}, rollout.DaemonSet{Name: m.daemons + "/" + connect.DaemonName, Exists: s.berthd != nil}
	s.Restored = true
	if s.former != nil {
		m.formerSpec = s.former.Spec.Template.Spec
		if s.Former.Confined, err = rollout.IsAway(s.former.original.Affinity); err != nil {
			return fmt.Errorf("DaemonSet %s: %w", s.Former.Name, err)
		}
		was := s.progress.Original
		s.Restored = was == nil || same(was.Affinity, s.former.original.Affinity) && same(was.UpdateStrategy, s.former.original.UpdateStrategy)
	}
	if s.berthd != nil {
		m.berthdSpec = s.berthd.Spec.Template.Spec
		if s.Berthd.Confined, err = rollout.OnlyServing(s.berthd.original.Affinity); err != nil {
			return fmt.Errorf("DaemonSet %s: %w", s.Berthd.Name, err)
		}
		s.Berthd.Confined = s.Berthd.Confined || s.berthd.Spec.Template.Spec.NodeSelector[rollout.Label] == rollout.Serving
	}
	return nil
}

// same reports whether two texts are the same JSON. A field that is missing is null.
func same(x, y json.RawMessage) bool {
	canonical := func(text json.RawMessage) string {
		var v any
		if json.Unmarshal(text, &v) != nil {
			return "null"
		}
		out, _ := json.Marshal(v)
		return string(out)
	}
	return canonical(x) == canonical(y)
}

// names returns the names of the objects at a path. Without a path, or such a kind, there are none.
func names(ctx context.Context, a *api, path string) map[string]bool {
	out := map[string]bool{}
	if path != "" {
		for _, o := range list[metav1.PartialObjectMetadata](ctx, a, path, path, nil) {
			out[o.Name] = true
		}
	}
	return out
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// podsOfNode returns the pods that hold addresses of the pod network.
func podsOfNode(pods []corev1.Pod) (out []rollout.Pod) {
	for i := range pods {
		p := &pods[i]
		if p.Spec.HostNetwork || p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		owner := metav1.GetControllerOf(p)
		out = append(out, rollout.Pod{
			Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Ending: p.DeletionTimestamp != nil,
			Bound: owner != nil && owner.Kind == "DaemonSet", Unmanaged: owner == nil || owner.Kind == "Node",
		})
	}
	return out
}

// Do implements rollout.Cluster.
func (m *migration) Do(ctx context.Context, a rollout.Action) error {
	if err := m.moveObjects(ctx, a); err != nil {
		return err
	}
	ctx, cancel := m.quick(ctx)
	defer cancel()
	switch a.Kind {
	case rollout.Begin:
		return m.begin(ctx)
	case rollout.Confine, rollout.Restore:
		return m.patchFormer(ctx, a.Kind == rollout.Confine)
	case rollout.DeleteFormer:
		return gone(m.api.rest.Delete().AbsPath(daemonSetPath(m.formerNamespace, m.formerName)).Do(ctx).Error())
	case rollout.End:
		if err := m.deleteConfig(ctx, dumpName); err != nil {
			return err // the record is last: it says that there is something to end
		}
		return m.deleteConfig(ctx, progressName)
	case rollout.Write:
		return m.writeRecord(ctx, a.Node, a.Record)
	case rollout.SetLabel:
		var value any // null removes the label
		if a.Value != "" {
			value = a.Value
		}
		return m.patchNode(ctx, a.Node, map[string]any{"metadata": map[string]any{"labels": map[string]any{rollout.Label: value}}})
	case rollout.Cordon, rollout.Uncordon:
		return m.patchNode(ctx, a.Node, map[string]any{"spec": map[string]any{"unschedulable": a.Kind == rollout.Cordon}})
	case rollout.Untaint:
		return m.untaint(ctx, a.Node)
	case rollout.Evict:
		return m.evict(ctx, a.Pod)
	case rollout.Fence:
		path := m.from.controls
		if a.Value == string(rollout.Rollback) {
			path = networksPath
		}
		return gone(m.api.rest.Delete().AbsPath(path + join(a.Node)).Do(ctx).Error())
	case rollout.StartTool:
		return m.startTool(ctx, a.Node, a.Value)
	case rollout.DiscardTool:
		return gone(m.api.rest.Delete().AbsPath(m.in("pods")+join(toolName(a.Node))).Param("gracePeriodSeconds", "0").Do(ctx).Error())
	}
	return fmt.Errorf("action %q is unknown", a.Kind)
}

// gone returns the error of a deletion, or nil if the object does not exist.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (m *migration) begin(ctx context.Context) error {
	text, err := json.Marshal(progress{From: m.from.name, DaemonSet: m.formerNamespace + "/" + m.formerName})
	if err != nil {
		return err
	}
	c := corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: progressName, Namespace: m.daemons, Labels: map[string]string{"app.kubernetes.io/part-of": "berth"}},
		Data:       map[string]string{progressKey: string(text)},
	}
	return m.send(ctx, m.in("configmaps"), &c)
}

// patchFormer keeps the former DaemonSet away from labelled nodes, or restores it. It first stores the parts that it changes in the
// ConfigMap. With the strategy OnDelete, the change of the template restarts no pods.
func (m *migration) patchFormer(ctx context.Context, confine bool) error {
	s := &seen{}
	if err := m.readProgress(ctx, s); err != nil {
		return err
	}
	if err := m.readDaemonSets(ctx, s); err != nil {
		return err
	}
	if s.former == nil || s.config == nil {
		return fmt.Errorf("DaemonSet %s/%s and ConfigMap %s/%s: expected both to exist", m.formerNamespace, m.formerName, m.daemons, progressName)
	}
	to := original{}
	if confine {
		was := s.progress.Original
		s.progress.Original = &s.former.original
		if was != nil && same(s.former.original.UpdateStrategy, onDelete) { // only the affinity was set again
			s.progress.Original.UpdateStrategy = was.UpdateStrategy
		}
		if err := m.writeProgress(ctx, s, progressKey, s.progress); err != nil {
			return err
		}
		var err error
		if to.Affinity, err = rollout.Away(s.former.original.Affinity); err != nil {
			return fmt.Errorf("DaemonSet %s: %w", s.Former.Name, err)
		}
		to.UpdateStrategy = onDelete
	} else if s.progress.Original != nil {
		to = *s.progress.Original
	}
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	ops := []op{{"test", "/metadata/resourceVersion", s.former.ResourceVersion}}
	if len(to.UpdateStrategy) > 0 {
		ops = append(ops, op{"add", "/spec/updateStrategy", to.UpdateStrategy})
	}
	switch {
	case len(to.Affinity) > 0:
		ops = append(ops, op{"add", "/spec/template/spec/affinity", to.Affinity})
	case len(s.former.original.Affinity) > 0:
		ops = append(ops, op{"remove", "/spec/template/spec/affinity", nil})
	}
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	return m.api.rest.Patch(types.JSONPatchType).AbsPath(daemonSetPath(m.formerNamespace, m.formerName)).Body(body).Do(ctx).Error()
}

// onDelete is the update strategy of a DaemonSet whose pods are not restarted by a change of its template.
var onDelete = json.RawMessage(`{"type":"OnDelete"}`)

func (m *migration) writeRecord(ctx context.Context, node string, r rollout.Record) error {
	s := &seen{}
	if err := m.readProgress(ctx, s); err != nil {
		return err
	}
	if s.config == nil {
		return fmt.Errorf("ConfigMap %s/%s does not exist any more", m.daemons, progressName)
	}
	if r.Direction == "" {
		return m.writeProgress(ctx, s, nodeKey+node, nil)
	}
	return m.writeProgress(ctx, s, nodeKey+node, r)
}

// writeProgress sets a key of the ConfigMap, or removes it, unless somebody changed the ConfigMap since it was read.
func (m *migration) writeProgress(ctx context.Context, s *seen, key string, v any) error {
	var value any
	if v != nil {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		value = string(text)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": s.config.ResourceVersion}, "data": map[string]any{key: value}})
	if err != nil {
		return err
	}
	return m.api.rest.Patch(types.MergePatchType).AbsPath(m.configPath()).Body(body).Do(ctx).Error()
}

// isTaint reports whether a taint is the former system's.
func (f former) isTaint(t corev1.Taint) bool { return f.taint != "" && t.Key == f.taint }

// untaint removes the former system's taint of a Node, and no other.
func (m *migration) untaint(ctx context.Context, node string) error {
	var k corev1.Node
	if err := into(ctx, m.api.rest.Get().AbsPath(nodesPath+join(node)), &k); err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(k.Spec.Taints), m.from.isTaint)
	return m.patchNode(ctx, node, map[string]any{"metadata": map[string]any{"resourceVersion": k.ResourceVersion}, "spec": map[string]any{"taints": left}})
}
