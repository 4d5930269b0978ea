package kubectl

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
)

// Status is the output of `kubectl berth status -o json`.
type Status struct {
	Time     time.Time       `json:"time"`
	Healthy  bool            `json:"healthy"` // no problem was found, and everything could be read
	Modes    []diagnose.Mode `json:"modes"`   // of the nodes, sorted
	Versions []Version       `json:"versions"`
	Operator *Operator       `json:"operator,omitempty"` // nil if no operator is needed
	Settings *SettingsState  `json:"settings,omitempty"`
	Totals   Totals          `json:"totals"`
	Trouble  []string        `json:"trouble"`  // problems of the cluster as a whole
	Nodes    []Node          `json:"nodes"`    // by name
	Pools    []Pool          `json:"pools"`    // by name
	VPCs     []VPC           `json:"vpcs"`     // by name
	Egresses []Egress        `json:"egresses"` // by namespace and name
	Unread   []string        `json:"unread"`   // failed reads and their reasons
}

// Version is a version of berthd, by image tag.
type Version struct {
	Version string `json:"version"`
	Nodes   int    `json:"nodes"`
}

// Totals are sums over the nodes.
type Totals struct {
	Nodes   int `json:"nodes"`
	Healthy int `json:"healthy"` // without problems
	Short   int `json:"short"`   // of addresses
	Unknown int `json:"unknown"` // whose addresses are not known
	Counts
}

// Node is one row of a Status.
type Node struct {
	Name         string        `json:"name"`
	Mode         diagnose.Mode `json:"mode,omitempty"` // empty without a daemon
	Ready        string        `json:"ready"`          // the Node's condition: True, False or Unknown; empty if there is no Node
	InstanceID   string        `json:"instanceID,omitempty"`
	InstanceType string        `json:"instanceType,omitempty"`
	Zone         string        `json:"zone,omitempty"`
	Daemon       DaemonPod     `json:"daemon"`
	Addresses    *Counts       `json:"addresses,omitempty"` // nil if unknown
	ENIs         int           `json:"enis"`                // that serve pods
	Blocks       int           `json:"blocks"`              // of address pools
	NICs         int           `json:"nics"`                // in VPCs, of pods on the node
	Clients      int           `json:"egressClients"`       // pods on the node that use or request Egresses
	Short        bool          `json:"short"`               // of addresses
	Trouble      []string      `json:"trouble"`
}

// DaemonPod is the berthd of a node.
type DaemonPod struct {
	Pod      string `json:"pod,omitempty"`
	Ready    bool   `json:"ready"`
	Version  string `json:"version,omitempty"`
	Restarts int32  `json:"restarts"`
}

// objects are the inputs of a Status and of the other views.
type objects struct {
	now      time.Time
	nodes    []corev1.Node
	daemons  map[string]daemon
	operator operatorObjects
	networks []v1alpha1.NodeNetwork
	pools    []v1alpha1.AddressPool
	blocks   []v1alpha1.AddressBlock
	requests []v1alpha1.BlockRequest
	vpcs     []v1alpha1.VPC
	nics     []v1alpha1.PodNIC
	egresses []v1alpha1.Egress
	clients  []v1alpha1.EgressClient
	pods     map[string]*corev1.Pod // of NICs, by NAMESPACE/NAME; nil if pods were not read
	answers  map[string]answer      // of the nodes that were queried
	unread   unread
}

// operatorObjects are the pods and the Lease of berth-operator, and the network policies that it resolves.
type operatorObjects struct {
	pods     []corev1.Pod
	lease    diagnose.Fact[coordinationv1.Lease]
	policies *policyCluster // with pods only if policies name ports; nil if no node enforces policies
}

// statusOf returns the status of the whole cluster.
func statusOf(o objects) Status {
	s := Status{Time: o.now, Modes: []diagnose.Mode{}, Versions: []Version{}, Trouble: []string{}, Pools: poolsOf(o), VPCs: vpcRows(o), Egresses: egressRows(o), Unread: o.unread.texts()}
	s.Nodes = nodesOf(o)
	versions := map[string]int{}
	for _, n := range s.Nodes {
		s.Totals.Nodes++
		if len(n.Trouble) == 0 {
			s.Totals.Healthy++
		}
		if n.Short {
			s.Totals.Short++
		}
		if n.Addresses != nil {
			s.Totals.add(*n.Addresses)
		} else {
			s.Totals.Unknown++
		}
		if n.Mode != "" && !slices.Contains(s.Modes, n.Mode) {
			s.Modes = append(s.Modes, n.Mode)
		}
		if n.Daemon.Version != "" {
			versions[n.Daemon.Version]++
		}
	}
	slices.Sort(s.Modes)
	for v, n := range versions {
		s.Versions = append(s.Versions, Version{v, n})
	}
	slices.SortFunc(s.Versions, func(a, b Version) int { return cmp.Or(b.Nodes-a.Nodes, cmp.Compare(a.Version, b.Version)) })
	s.operator(o)
	s.Trouble = append(s.Trouble, summary(strays(o, s.Egresses), "pods")...)
	s.Trouble = append(s.Trouble, o.operator.policies.unresolved()...)
	if len(s.Modes) == 0 && len(s.Unread) == 0 {
		s.Trouble = append(s.Trouble, "no berthd pod found: check that Berth is installed, and in the namespace of --berth-namespace")
	}
	s.Healthy = len(s.Trouble)+len(s.Unread) == 0 && s.Totals.Healthy == s.Totals.Nodes &&
		!slices.ContainsFunc(s.Pools, Pool.unwell) && !slices.ContainsFunc(s.VPCs, VPC.unwell) && !slices.ContainsFunc(s.Egresses, Egress.unwell)
	return s
}

// needOperator reports whether the cluster needs an operator: it has a node, its network policies, a VPC,
// an Egress or a pod that requests an Egress that depends on one.
func (o objects) needOperator() bool {
	return len(o.vpcs)+len(o.egresses)+len(o.clients) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(o.daemons)), func(d daemon) bool { return d.mode != diagnose.NodeMode || d.policies })
}

// operatorsFact counts the pods of berth-operator, for a diagnosis.
func operatorsFact(o objects) diagnose.Fact[diagnose.Operators] {
	if o.unread.why("pods of berth-operator") != "" {
		return diagnose.Unread[diagnose.Operators]("reading the operator's pods is not allowed")
	}
	op := operatorOf(o.operator.pods)
	return diagnose.Of(diagnose.Operators{Ready: op.Ready, All: op.Pods})
}

// daemonFact returns the berthd of a node, for a diagnosis.
func (o objects) daemonFact(node string) diagnose.Fact[diagnose.Daemon] {
	if d, ok := o.daemons[node]; ok {
		return diagnose.Of(d.facts())
	}
	return diagnose.Fact[diagnose.Daemon]{Unread: o.unread.why("pods of berthd")}
}

// operator sets the state of the operator, if the cluster needs one.
func (s *Status) operator(o objects) {
	if !o.needOperator() {
		return
	}
	op := operatorOf(o.operator.pods)
	if l := o.operator.lease.Value; l != nil && l.Spec.HolderIdentity != nil {
		op.Leader = *l.Spec.HolderIdentity
	}
	s.Operator = &op
	lacks := "no node gets more addresses"
	if len(o.vpcs) > 0 {
		lacks = "no pod gets NICs of VPCs, and " + lacks
	}
	if len(o.egresses)+len(o.clients) > 0 {
		lacks = "no pod becomes a client of an Egress, and " + lacks
	}
	if o.operator.policies != nil {
		lacks = "no node learns about changes of network policies, and " + lacks
	}
	switch {
	case op.Ready > 0 || o.unread.why("pods of berth-operator") != "":
	case op.Pods == 0:
		s.Trouble = append(s.Trouble, "no berth-operator pod exists: "+lacks)
	default:
		s.Trouble = append(s.Trouble, "no berth-operator pod is ready, so "+lacks+": "+op.Why)
	}
}

// nodesOf returns the rows of all nodes that can run berthd or that have a daemon or a
// NodeNetwork, by name.
func nodesOf(o objects) []Node {
	networks, nodes := map[string]*v1alpha1.NodeNetwork{}, map[string]*corev1.Node{}
	names := map[string]bool{}
	for i := range o.networks {
		networks[o.networks[i].Name] = &o.networks[i]
		names[o.networks[i].Name] = true
	}
	for i, n := range o.nodes {
		nodes[n.Name] = &o.nodes[i]
		names[n.Name] = names[n.Name] || takesDaemons(n)
	}
	for name := range o.daemons {
		names[name] = true
	}
	blocks := grouped(o.blocks, func(b v1alpha1.AddressBlock) string { return b.NodeName })
	requests := grouped(o.requests, func(r v1alpha1.BlockRequest) string { return r.Spec.NodeName })
	clients := grouped(clientRows(o), func(c EgressClient) string { return c.Node })
	nics := grouped(o.nicRows(), func(n NIC) string { return n.Node })
	out := []Node{}
	for name, is := range names {
		if !is {
			continue
		}
		f := nodeFacts{name: name, now: o.now, node: nodes[name], network: networks[name], blocks: blocks[name], requests: requests[name], nics: nics[name], clients: clients[name], unread: o.unread}
		if d, ok := o.daemons[name]; ok {
			f.daemon = &d
		}
		if a, ok := o.answers[name]; ok {
			f.answer = &a
		}
		out = append(out, f.row())
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// grouped returns the elements of a list by a key.
func grouped[T any](list []T, key func(T) string) map[string][]T {
	out := map[string][]T{}
	for _, v := range list {
		out[key(v)] = append(out[key(v)], v)
	}
	return out
}

// takesDaemons reports whether a node can run berthd: it runs Linux and has a real kubelet.
func takesDaemons(n corev1.Node) bool {
	os := cmp.Or(n.Labels[corev1.LabelOSStable], "linux")
	return os == "linux" && n.Labels["eks.amazonaws.com/compute-type"] != "fargate" && n.Labels["type"] != "virtual-kubelet"
}

// nodeFacts are the inputs of a node's row. A nil field does not exist or was not read.
type nodeFacts struct {
	name     string
	now      time.Time
	node     *corev1.Node
	daemon   *daemon
	network  *v1alpha1.NodeNetwork
	blocks   []v1alpha1.AddressBlock
	requests []v1alpha1.BlockRequest
	nics     []NIC
	clients  []EgressClient
	answer   *answer
	unread   unread
}

func (f nodeFacts) row() Node {
	r := Node{Name: f.name, Trouble: []string{}, Blocks: len(f.blocks), NICs: len(f.nics), Clients: len(f.clients)}
	if f.node != nil {
		r.Ready = string(corev1.ConditionUnknown)
		for _, c := range f.node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				r.Ready = string(c.Status)
			}
		}
		r.InstanceType, r.Zone = f.node.Labels[corev1.LabelInstanceTypeStable], f.node.Labels[corev1.LabelTopologyZone]
	}
	if d := f.daemon; d != nil {
		r.Mode = d.mode
		r.Daemon = DaemonPod{Pod: d.pod.Name, Ready: d.ready, Version: d.version, Restarts: d.restarts}
	}
	if n := f.network; n != nil {
		c := countsOf(n)
		r.Addresses, r.ENIs, r.InstanceID = &c, int(n.Status.ENI.Count), n.Spec.InstanceID
		r.InstanceType = cmp.Or(r.InstanceType, n.Spec.InstanceType)
	}
	if a := f.answer; a != nil && a.err == nil {
		needed := 0
		if r.Addresses != nil {
			needed = r.Addresses.Needed
		}
		c := countsIn(a.doc)
		c.Needed = needed
		r.Addresses, r.InstanceID = &c, cmp.Or(a.doc.InstanceID, r.InstanceID)
		r.ENIs, r.Blocks = max(r.ENIs, len(a.doc.ENIs)), max(r.Blocks, len(a.doc.Blocks))
		r.Daemon.Version = cmp.Or(a.doc.Version, r.Daemon.Version)
	}
	for _, look := range []func(*Node){f.kubernetes, f.daemons, f.networks, f.pools, f.ports, f.egress, f.answers} {
		look(&r)
	}
	if c := r.Addresses; c != nil && c.Waiting > 0 {
		r.Short = true
	}
	return r
}

func (r *Node) bad(format string, args ...any) {
	r.Trouble = append(r.Trouble, fmt.Sprintf(format, args...))
}

func (f nodeFacts) kubernetes(r *Node) {
	switch {
	case f.node == nil && f.unread.why("Nodes") == "":
		r.bad("no Node has this name")
	case f.node != nil && r.Ready != string(corev1.ConditionTrue):
		r.bad("the Node is not ready%s", nodeCondition(f.node, corev1.NodeReady))
	}
	if f.node == nil {
		return
	}
	for _, c := range f.node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			r.bad("the Node's network is unavailable%s", nodeCondition(f.node, c.Type))
		}
	}
}

// nodeCondition returns reason and message of a Node's condition, to append to a text.
func nodeCondition(n *corev1.Node, kind corev1.NodeConditionType) string {
	for _, c := range n.Status.Conditions {
		if c.Type == kind && c.Reason+c.Message != "" {
			return fmt.Sprintf(" (%s): %s", c.Reason, c.Message)
		}
	}
	return ""
}

func (f nodeFacts) daemons(r *Node) {
	switch d := f.daemon; {
	case d == nil && f.node != nil && f.unread.why("pods of berthd") == "":
		r.bad("no berthd pod runs here")
	case d != nil && !d.ready:
		r.bad("berthd is not ready: %s", d.why)
	}
}

// growing is how long the operator may take to assign a node the addresses that it needs.
const growing = 30 * time.Second

func (f nodeFacts) networks(r *Node) {
	n := f.network
	if n == nil {
		if r.Mode == diagnose.OperatorMode && f.unread.why("NodeNetworks") == "" {
			r.bad("no NodeNetwork has this name")
			r.Short = true
		}
		return
	}
	said := map[string]bool{}
	say := func(c *metav1.Condition) {
		if c != nil && !said[c.Reason+c.Message] {
			said[c.Reason+c.Message] = true
			r.bad("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	conditions := n.Status.Conditions
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		r.bad("berth-operator has not reported on its NodeNetwork")
	case ready.Status != metav1.ConditionTrue:
		say(ready)
	}
	if meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionDegraded) {
		say(meta.FindStatusCondition(conditions, v1alpha1.ConditionDegraded))
	}
	if d := meta.FindStatusCondition(conditions, v1alpha1.ConditionInDeficit); d != nil && d.Status == metav1.ConditionTrue {
		c := countsOf(n)
		if r.Short = c.Warm == 0; r.Short && f.now.Sub(d.LastTransitionTime.Time) > growing || d.Reason != "Allocating" && c.Waiting > 0 {
			say(d)
		}
	}
}

func (f nodeFacts) pools(r *Node) {
	for _, q := range f.requests {
		failed := meta.FindStatusCondition(q.Status.Conditions, v1alpha1.ConditionFailed)
		switch age := f.now.Sub(q.CreationTimestamp.Time); {
		case failed != nil && failed.Status == metav1.ConditionTrue:
			r.Short = true
			r.bad("no further block of pool %s (%s): %s", q.Spec.PoolName, failed.Reason, failed.Message)
		case q.Status.AddressBlockName == "" && age > growing:
			r.Short = true
			r.bad("a request for a block of pool %s is unanswered for %s", q.Spec.PoolName, view.Age(q.CreationTimestamp.Time, f.now))
		}
	}
}

// ofNode are the verdicts of NICs that may be caused by the node or the provider's agent on it.
var ofNode = []diagnose.Verdict{
	diagnose.NotBound, diagnose.BoundElsewhere, diagnose.NotPlugged, diagnose.PlugFailed, diagnose.NotActive, diagnose.PodMissing, diagnose.NotReleased,
}

func (f nodeFacts) ports(r *Node) {
	its := slices.DeleteFunc(unwell(f.nics), func(n NIC) bool { return !slices.Contains(ofNode, n.Diagnosis.Verdict) })
	r.Trouble = append(r.Trouble, summary(its, "NICs")...)
}

// egress adds the clients of Egresses that the node has not set up.
func (f nodeFacts) egress(r *Node) {
	its := slices.DeleteFunc(unwell(f.clients), func(c EgressClient) bool { return c.Diagnosis.Verdict != diagnose.NotSetUp })
	r.Trouble = append(r.Trouble, summary(its, "pods")...)
}

func (f nodeFacts) answers(r *Node) {
	if f.answer == nil {
		return
	}
	if err := f.answer.err; err != nil {
		r.bad("berthd could not be queried: %v", err)
		return
	}
	for _, c := range f.answer.doc.Conditions {
		if c.Status != introspect.True && c.Type != v1alpha1.ConditionSettings {
			r.bad("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	if e := f.answer.doc.LastError; e != "" && !slices.ContainsFunc(r.Trouble, func(t string) bool { return strings.Contains(t, e) }) {
		r.bad("%s", e)
	}
}
