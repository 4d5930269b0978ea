package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

// coilGroup is the API group of Coil v2.
const coilGroup = "coil.cybozu.com"

// Labels and annotations of Coil v2.
const (
	coilLabelPool     = coilGroup + "/pool" // also the annotation of Namespaces
	coilLabelNode     = coilGroup + "/node"
	coilLabelRequest  = coilGroup + "/request"
	coilLabelReserved = coilGroup + "/reserved"
	coilEgressPrefix  = "egress." + coilGroup + "/" // of pods; the namespace of Egresses follows
)

// coilPool is an AddressPool of Coil v2.
type coilPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		BlockSizeBits *int32                `json:"blockSizeBits"`
		Subnets       []v1alpha1.PoolSubnet `json:"subnets"`
	} `json:"spec"`
}

// coilBlock is an AddressBlock of Coil v2.
type coilBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Index             int64  `json:"index"`
	IPv4              string `json:"ipv4"`
	IPv6              string `json:"ipv6"`
}

// coilPools adds an AddressPool of the same name, subnets and block size for each. Ranges of blocks that no node of the
// cluster may hand out are reserved.
func coilPools(of []Object, in *Input, out *Output) error {
	reserved, err := coilReserved(in, out)
	errs := []error{err}
	for i := range of {
		o := &of[i]
		var p coilPool
		err := o.Decode(&p)
		if err == nil {
			_, err = p.layout()
		}
		ranges := merged(reserved[o.Name])
		if err == nil && len(ranges) > maxReserved {
			err = fmt.Errorf("%d ranges would be reserved: expected at most %d; delete blocks that nobody uses", len(ranges), maxReserved)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", o, o.Source, err))
			continue
		}
		made := &v1alpha1.AddressPool{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressPool"},
			ObjectMeta: metav1.ObjectMeta{Name: p.Name},
			Spec:       v1alpha1.AddressPoolSpec{BlockSizeBits: p.Spec.BlockSizeBits, Subnets: p.Spec.Subnets},
		}
		for _, r := range ranges {
			made.Spec.Reserved = append(made.Spec.Reserved, r.String())
		}
		out.Objects = append(out.Objects, made)
		if p.DeletionTimestamp != nil {
			out.Comment("kubectl delete --wait=false addresspools.berth.dev %s   # after its blocks are created: Coil's is being deleted, and ends with its last pod", p.Name)
		}
	}
	return errors.Join(errs...)
}

// maxReserved is the most ranges that an AddressPool reserves.
const maxReserved = 128

// layout checks a pool as Berth does.
func (p *coilPool) layout() (block.Layout, error) {
	if len(p.Name) > 63 || strings.Contains(p.Name, ".") {
		return block.Layout{}, fmt.Errorf("metadata.name is %q: expected at most 63 characters without dots, since Berth's blocks have it as a label", p.Name)
	}
	bits := v1alpha1.DefaultBlockSizeBits
	if p.Spec.BlockSizeBits != nil {
		bits = int(*p.Spec.BlockSizeBits)
	}
	var subnets []block.Subnet
	for i, s := range p.Spec.Subnets {
		var b block.Subnet
		for _, f := range []struct {
			name, text string
			to         *netip.Prefix
		}{{"ipv4", s.IPv4, &b.IPv4}, {"ipv6", s.IPv6, &b.IPv6}} {
			var err error
			if f.text == "" {
				continue
			}
			if *f.to, err = netip.ParsePrefix(f.text); err != nil {
				return block.Layout{}, fmt.Errorf("spec.subnets[%d].%s is %q: expected a CIDR", i, f.name, f.text)
			}
		}
		subnets = append(subnets, b)
	}
	l, err := block.Parse(bits, subnets)
	if err != nil {
		err = fmt.Errorf("spec.%w", err)
	}
	return l, err
}

// coilNodes returns the Nodes that were read; known is false if there were none, so that all are taken to exist.
func coilNodes(in *Input) (nodes map[string]bool, known bool) {
	nodes = map[string]bool{}
	for _, o := range in.Of("", "Node") {
		nodes[o.Name] = true
	}
	return nodes, len(nodes) > 0
}

// coilReserved returns the ranges of blocks that must be reserved, by pool: those that Coil reserves, and those of Nodes
// that are gone, whose machines may still run pods.
func coilReserved(in *Input, out *Output) (map[string][]netip.Prefix, error) {
	reserved := map[string][]netip.Prefix{}
	nodes, known := coilNodes(in)
	var errs []error
	for _, o := range in.Of(coilGroup, "AddressBlock") {
		var b coilBlock
		if err := o.Decode(&b); err != nil {
			errs = append(errs, err)
			continue
		}
		gone := known && !nodes[b.Labels[coilLabelNode]]
		if b.Labels[coilLabelReserved] != "true" && !gone {
			continue
		}
		if gone {
			out.Lose(&o, "metadata.labels["+coilLabelNode+"]", fmt.Sprintf("Node %s does not exist, and its machine may still run pods: the block's addresses are in spec.reserved of AddressPool %s. Remove them there once the machine is off", b.Labels[coilLabelNode], b.Labels[coilLabelPool]))
		}
		// The counterparts of the other family are reserved with these.
		first := cmp.Or(b.IPv4, b.IPv6)
		p, err := netip.ParsePrefix(first)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): ipv4 is %q: expected a CIDR", &o, o.Source, first))
			continue
		}
		reserved[b.Labels[coilLabelPool]] = append(reserved[b.Labels[coilLabelPool]], p.Masked())
	}
	return reserved, errors.Join(errs...)
}

// merged returns the fewest prefixes with the same addresses, sorted.
func merged(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	for {
		slices.SortFunc(list, netip.Prefix.Compare)
		list = slices.Compact(list)
		changed := false
		for i := 0; i+1 < len(list); i++ {
			a, b := list[i], list[i+1]
			parent := netip.PrefixFrom(a.Addr(), max(a.Bits()-1, 0)).Masked()
			switch {
			case a.Overlaps(b):
				list = slices.Delete(list, i+1, i+2)
			case a.Bits() == b.Bits() && a.Bits() > 0 && parent.Contains(b.Addr()) && parent.Addr() == a.Addr():
				list = slices.Replace(list, i, i+2, parent)
			default:
				continue
			}
			changed = true
			break
		}
		if !changed {
			return list
		}
	}
}

// coilBlocks adds an AddressBlock of the same pool, index and node for each whose Node exists.
func coilBlocks(of []Object, in *Input, out *Output) error {
	var errs []error
	layouts := map[string]block.Layout{}
	for _, o := range in.Of(coilGroup, "AddressPool") {
		var p coilPool
		if o.Decode(&p) == nil { // coilPools reports errors
			if l, err := p.layout(); err == nil {
				layouts[p.Name] = l
			}
		}
	}
	nodes, known := coilNodes(in)
	var made []*v1alpha1.AddressBlock
	for i := range of {
		o := &of[i]
		var b coilBlock
		err := o.Decode(&b)
		var berths *v1alpha1.AddressBlock
		if err == nil {
			if node := b.Labels[coilLabelNode]; known && !nodes[node] {
				continue
			}
			if berths, err = b.convert(layouts); err != nil {
				err = fmt.Errorf("%s (%s): %w", o, o.Source, err)
			}
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		made = append(made, berths)
		if b.DeletionTimestamp != nil {
			out.Comment("kubectl delete --wait=false addressblocks.berth.dev %s   # after it is created: Coil's is being deleted, and ends with its last pod", berths.Name)
		}
	}
	slices.SortFunc(made, func(a, b *v1alpha1.AddressBlock) int {
		return cmp.Or(cmp.Compare(a.PoolName, b.PoolName), cmp.Compare(a.Index, b.Index))
	})
	for i, b := range made {
		if i > 0 && made[i-1].Name == b.Name {
			errs = append(errs, fmt.Errorf("two blocks of pool %s have the index %d", b.PoolName, b.Index))
		}
		out.Objects = append(out.Objects, b)
	}
	if len(made) > 0 {
		out.Comment("AddressBlocks are accepted from berth-operator alone: apply them with --as=system:serviceaccount:NAMESPACE:berth-operator, after the AddressPools and before berth-operator runs")
	}
	return errors.Join(errs...)
}

// convert returns Berth's block, which has the addresses that its index stands for.
func (b *coilBlock) convert(layouts map[string]block.Layout) (*v1alpha1.AddressBlock, error) {
	pool, node := b.Labels[coilLabelPool], b.Labels[coilLabelNode]
	switch {
	case pool == "":
		return nil, fmt.Errorf("label %s is missing: expected the name of the pool", coilLabelPool)
	case node == "":
		return nil, fmt.Errorf("label %s is missing: expected the name of the node", coilLabelNode)
	}
	l, has := layouts[pool]
	if !has {
		return nil, fmt.Errorf("AddressPool %s is missing: convert it together with its blocks", pool)
	}
	piece, err := l.Block(b.Index)
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	for _, f := range []struct {
		name, text string
		want       netip.Prefix
	}{{"ipv4", b.IPv4, piece.IPv4}, {"ipv6", b.IPv6, piece.IPv6}} {
		has, err := netip.ParsePrefix(cmp.Or(f.text, "invalid"))
		if f.text == "" && !f.want.IsValid() {
			continue
		}
		if err != nil || has != f.want {
			return nil, fmt.Errorf("%s is %q: expected %s, which the index %d stands for in pool %s", f.name, f.text, f.want, b.Index, pool)
		}
	}
	made := &v1alpha1.AddressBlock{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AddressBlock"},
		ObjectMeta: metav1.ObjectMeta{
			Name:       fmt.Sprintf("%s-%d", pool, b.Index),
			Labels:     map[string]string{v1alpha1.LabelPool: pool, v1alpha1.LabelNode: v1alpha1.NodeLabel(node)},
			Finalizers: []string{v1alpha1.FinalizerBlock},
		},
		PoolName: pool, NodeName: node, Index: b.Index, IPv4: b.IPv4, IPv6: b.IPv6,
		RequestUID: types.UID(b.Labels[coilLabelRequest]),
	}
	return made, nil
}

// coilAnnotations adds objects with Berth's annotations in place of Coil's. Objects without any are left out. A pod that
// runs cannot be applied again, so a command is printed for it.
func coilAnnotations(of []Object, _ *Input, out *Output) error {
	var errs []error
	for i := range of {
		o := &of[i]
		var tree map[string]any
		if err := json.Unmarshal(o.raw, &tree); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", o, o.Source, err))
			continue
		}
		switch {
		case o.Kind == "Pod" && o.UID != "":
			for _, key := range slices.Sorted(maps.Keys(o.Annotations)) {
				to, value := berthAnnotation(key), o.Annotations[key]
				switch {
				case to == "":
				case strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789-., ") != "":
					out.Lose(o, "metadata.annotations["+key+"]", "names that Kubernetes would refuse")
				default:
					out.Comment("kubectl -n %s annotate --overwrite pod %s %s='%s'", o.Namespace, o.Name, to, value)
				}
			}
		case renameAnnotations(tree):
			delete(tree, "status")
			if meta, ok := tree["metadata"].(map[string]any); ok {
				for _, key := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "ownerReferences"} {
					delete(meta, key)
				}
			}
			if o.Kind == "Namespace" {
				delete(tree, "spec")
			}
			out.Objects = append(out.Objects, tree)
		}
	}
	return errors.Join(errs...)
}

// berthAnnotation returns Berth's key for one of Coil's, or "".
func berthAnnotation(key string) string {
	if key == coilLabelPool {
		return v1alpha1.AnnotationPool
	}
	if namespace, ok := strings.CutPrefix(key, coilEgressPrefix); ok {
		return v1alpha1.AnnotationEgressPrefix + namespace
	}
	return ""
}

// renameAnnotations renames Coil's annotations of an object and of the templates inside, and reports whether there were
// any.
func renameAnnotations(tree map[string]any) (found bool) {
	for key, value := range tree {
		inner, ok := value.(map[string]any)
		if !ok {
			continue
		}
		if key == "annotations" {
			for name, text := range inner {
				if to := berthAnnotation(name); to != "" {
					delete(inner, name)
					inner[to] = text
					found = true
				}
			}
			continue
		}
		found = renameAnnotations(inner) || found
	}
	return found
}
