package oracle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
	"github.com/berthnet/berth/internal/policy/resolve"
	"github.com/berthnet/berth/internal/policy/wire"
	"github.com/berthnet/berth/internal/statefile"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// NetworkPolicies resolves the NetworkPolicies and ClusterNetworkPolicies in the API from scratch, and compares the result with each node's
// introspection and kernel: policies of each pod, their content, the elements of sets, and nothing else. With stored, it
// compares the file on the node too, which changes of sets alone reach ten seconds later. It is part of Check, and like
// Check expects a lab at rest.
func NetworkPolicies(ctx context.Context, l *lab.Lab, stored bool) []error {
	r, err := resolved(ctx, l.Kube.Client)
	if err != nil {
		return []error{err}
	}
	nodes := l.Nodes()
	found := make([]policyFindings, len(nodes))
	for i, n := range nodes { // the resolver serves one goroutine
		found[i] = policyFindings{node: n, want: updateFor(r, n.Name)}
		found[i].expect(r)
	}
	var wg sync.WaitGroup
	for i := range found {
		wg.Go(func() {
			found[i].checkDocument(ctx)
			found[i].checkKernel()
			if stored {
				found[i].checkFile()
			}
		})
	}
	wg.Wait()
	var errs []error
	for _, f := range found {
		errs = append(errs, f.errs...)
	}
	return errs
}

// resolved resolves the objects in the API.
func resolved(ctx context.Context, c client.Client) (*resolve.Resolver, error) {
	pods, namespaces, nodes, policies := &corev1.PodList{}, &corev1.NamespaceList{}, &corev1.NodeList{}, &networkingv1.NetworkPolicyList{}
	for _, list := range []client.ObjectList{pods, namespaces, nodes, policies} {
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	r := resolve.New()
	for _, n := range namespaces.Items {
		r.SetNamespace(n.Name, n.Labels)
	}
	for i := range pods.Items {
		if p, ok := resolve.ReadPod(&pods.Items[i]); ok {
			r.SetPod(p)
		}
	}
	for _, n := range nodes.Items {
		var addrs []netip.Addr
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				addrs = append(addrs, addr)
			}
		}
		r.SetNode(n.Name, n.Labels, addrs)
	}
	for i := range policies.Items {
		r.SetPolicy(compile.NetworkPolicy(&policies.Items[i]))
	}
	return r, resolveCluster(ctx, c, r)
}

// resolveCluster adds the ClusterNetworkPolicies, if their kind is installed.
func resolveCluster(ctx context.Context, c client.Client, r *resolve.Resolver) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(ClusterNetworkPolicy.GroupVersion().WithKind(ClusterNetworkPolicy.Kind + "List"))
	switch err := c.List(ctx, list); {
	case meta.IsNoMatchError(err):
		return nil
	case err != nil:
		return fmt.Errorf("list ClusterNetworkPolicies: %w", err)
	}
	for _, o := range list.Items {
		p := &networkpolicy.ClusterNetworkPolicy{}
		if err := k8sruntime.DefaultUnstructuredConverter.FromUnstructured(o.Object, p); err != nil {
			return fmt.Errorf("ClusterNetworkPolicy %s: %w", o.GetName(), err)
		}
		r.SetPolicy(compile.ClusterNetworkPolicy(p))
	}
	return nil
}

// ClusterNetworkPolicy is that kind, for clients without its types.
var ClusterNetworkPolicy = schema.GroupVersionKind{Group: networkpolicy.GroupName, Version: networkpolicy.GroupVersion.Version, Kind: "ClusterNetworkPolicy"}

// updateFor returns what a node must know.
func updateFor(r *resolve.Resolver, node string) *policy.Update {
	u := &policy.Update{Whole: true, Pods: map[policy.PodName]*policy.Selected{}, Policies: map[policy.Ref]*policy.Policy{}, Sets: policy.SetChanges{}}
	for name := range r.Pods() {
		pod, list, _ := r.Policies(name)
		if pod.Node != node {
			continue
		}
		selected := &policy.Selected{UID: string(pod.UID)}
		for _, p := range list {
			selected.Policies = append(selected.Policies, p.Ref)
			u.Policies[p.Ref] = p
			for id := range p.Sets() {
				change := u.Sets.Of(id)
				r.Elements(id, func(e policy.Element) { change.Note(e, true) })
			}
		}
		u.Pods[policy.PodName(name)] = selected
	}
	return u
}

// policyFindings is the check of one node's policies.
type policyFindings struct {
	node *node.Node
	want *policy.Update
	pods []policytable.Pod // those that run
	docs []string          // what introspection must say about them
	errs []error
}

func (f *policyFindings) wrong(format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("node "+f.node.Name+": network policies: "+format, args...))
}

// differ reports the lines that only one of two lists has.
func (f *policyFindings) differ(where string, got, want []string) {
	for _, line := range want {
		if !slices.Contains(got, line) {
			f.wrong("%s lacks %s", where, line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			f.wrong("%s has %s, and should not", where, line)
		}
	}
}

// expect works out the policies of the pods that run.
func (f *policyFindings) expect(r *resolve.Resolver) {
	for _, p := range f.node.Pods() {
		known, list, ok := r.Policies(types.NamespacedName{Namespace: p.Namespace, Name: p.ObjectName})
		if !ok || string(known.UID) != p.UID || !slices.Equal(known.Addrs, p.Addrs) {
			f.wrong("the API does not have pod %s/%s with UID %s and %v, but %v", p.Namespace, p.ObjectName, p.UID, p.Addrs, known)
			continue
		}
		f.pods = append(f.pods, policytable.Pod{Addrs: p.Addrs, Policies: list})
		var refs [2][]string
		for _, d := range policy.Directions {
			for _, of := range list {
				if of.Judges(d) {
					refs[d] = append(refs[d], of.String())
				}
			}
		}
		f.docs = append(f.docs, attachmentLine(p.Namespace, p.ObjectName, p.UID, p.Addrs, true, refs))
	}
	named := map[policy.Ref]int{}
	for _, p := range f.pods {
		for _, of := range p.Policies {
			named[of.Ref]++
		}
	}
	for ref, n := range named {
		f.docs = append(f.docs, fmt.Sprintf("%s, digest %s, in force for %d of %d pods", ref, f.want.Policies[ref].Digest(), n, n))
	}
	for id, s := range f.want.Sets {
		f.docs = append(f.docs, fmt.Sprintf("set %s of %d", id, len(s.Elements)))
	}
}

func attachmentLine(namespace, pod, uid string, addrs []netip.Addr, inForce bool, refs [2][]string) string {
	return fmt.Sprintf("pod %s/%s, UID %s, %v, in force %t, ingress %v, egress %v", namespace, pod, uid, addrs, inForce, refs[policy.Ingress], refs[policy.Egress])
}

// NetworkPoliciesOf fetches a node's introspection document about network policies.
func NetworkPoliciesOf(ctx context.Context, n *node.Node) (doc introspect.NetworkPolicies, err error) {
	body, err := n.Get(ctx, strings.TrimSuffix(node.IntrospectionURL, introspect.Path)+introspect.NetworkPoliciesPath)
	if err != nil {
		return doc, err
	}
	return doc, json.Unmarshal([]byte(body), &doc)
}

func (f *policyFindings) checkDocument(ctx context.Context) {
	doc, err := NetworkPoliciesOf(ctx, f.node)
	if err != nil {
		f.wrong("introspection: %w", err)
		return
	}
	if !doc.Connected || doc.Failure != "" {
		f.wrong("introspection: connected %t (%s), failure %q", doc.Connected, doc.ConnectError, doc.Failure)
	}
	var got []string
	for _, a := range doc.Attachments {
		refs := [2][]string{policy.Ingress: namesOf(a.Ingress), policy.Egress: namesOf(a.Egress)}
		got = append(got, attachmentLine(a.Namespace, a.Pod, a.UID, a.Addresses, a.Known && a.InForce, refs))
	}
	for _, p := range doc.Policies {
		ref := policy.Ref{Namespace: p.Namespace, Name: p.Name}
		got = append(got, fmt.Sprintf("%s, digest %s, in force for %d of %d pods", ref, p.Digest, p.InForce, p.Pods))
	}
	for _, s := range doc.Sets {
		got = append(got, fmt.Sprintf("set %s of %d", s.Name, s.Elements))
	}
	f.differ("introspection", got, f.docs)
}

func namesOf(list []introspect.AppliedPolicy) (names []string) {
	for _, p := range list {
		names = append(names, policy.Ref{Namespace: p.Namespace, Name: p.Name}.String())
	}
	return names
}

// checkFile compares the file with which the node begins after a restart.
func (f *policyFindings) checkFile() {
	data, err := statefile.Read(filepath.Join(f.node.Dir, "var", "lib", "berth", "networkpolicies.pb"))
	var stored wire.Update
	if err == nil {
		err = proto.Unmarshal(data, &stored)
	}
	var u *policy.Update
	if err == nil {
		u, err = (&wire.Decoder{}).Add(&stored)
	}
	if err != nil {
		f.wrong("read the stored file: %w", err)
		return
	}
	f.differ("the stored file", linesOf(u), linesOf(f.want))
}

// linesOf describes an update.
func linesOf(u *policy.Update) (lines []string) {
	for name, p := range u.Pods {
		lines = append(lines, fmt.Sprintf("pod %s/%s, UID %s, %v", name.Namespace, name.Name, p.UID, p.Policies))
	}
	for ref, p := range u.Policies {
		lines = append(lines, fmt.Sprintf("%s, digest %s", ref, p.Digest()))
	}
	for id, s := range u.Sets {
		lines = append(lines, "set "+string(id))
		for e := range s.Elements {
			lines = append(lines, fmt.Sprintf("set %s: %v", id, e))
		}
	}
	return lines
}

// checkKernel compares the node's table with one that is made from scratch in a network namespace of its own.
func (f *policyFindings) checkKernel() {
	got, want, err := f.tables()
	if err != nil {
		f.wrong("read the kernel: %w", err)
		return
	}
	f.differ("the kernel", got, want)
}

// applying is held while a table is made.
var applying sync.Mutex

func (f *policyFindings) tables() (got, want []string, err error) {
	own, err := netns.GetFromPath(f.node.Netns)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = own.Close() }()
	scratch, err := newNetns()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = scratch.Close() }()
	elements := func(id policy.SetID, yield func(policy.Element)) {
		for e := range f.want.Sets.Of(id).Elements {
			yield(e)
		}
	}
	table := policytable.New(scratch)
	log, err := table.OpenLog() // as berthd does, so that there are the rules that write to it
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = log.Close() }()
	applying.Lock() // the library counts sets in a variable of its own
	err = table.Apply(f.pods, elements, nil)
	applying.Unlock()
	if err != nil {
		return nil, nil, err
	}
	got, errGot := tableLines(own)
	want, errWant := tableLines(scratch)
	return got, want, errors.Join(errGot, errWant)
}

// newNetns makes a network namespace that ends with its handle.
func newNetns() (h netns.NsHandle, err error) {
	done := make(chan struct{})
	go func() { // its thread ends with it
		defer close(done)
		runtime.LockOSThread()
		h, err = netns.New()
	}()
	<-done
	return h, err
}

// tableLines describes the table of a network namespace, except for what passes: counters, and connections that ended.
// Rules are tagged with their text.
func tableLines(h netns.NsHandle) (lines []string, err error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(h)))
	if err != nil {
		return nil, err
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: policytable.Name}
	sets, err := c.GetSets(table)
	if err != nil {
		return nil, fmt.Errorf("sets: %w", err)
	}
	for _, set := range sets {
		if set.Anonymous || strings.HasPrefix(set.Name, "ended") {
			continue
		}
		lines = append(lines, "set "+set.Name)
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			lines = append(lines, fmt.Sprintf("set %s: %x %s %t", set.Name, e.Key, cmp.Or(verdictChain(e.Val), string(e.Val)), e.IntervalEnd))
		}
	}
	chains, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name != table.Name {
			continue
		}
		rules, err := c.GetRules(table, chain)
		if err != nil {
			return nil, fmt.Errorf("chain %s: %w", chain.Name, err)
		}
		lines = append(lines, fmt.Sprintf("chain %s of %d rules", chain.Name, len(rules)))
		for _, r := range rules {
			lines = append(lines, fmt.Sprintf("chain %s: %q", chain.Name, r.UserData))
		}
	}
	return lines, nil
}
