// Package etcd reads what Coil v1 keeps in etcd: pools, the blocks of nodes and the owners of addresses.
package etcd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/ipam/block"
)

// DefaultPrefix begins Coil v1's keys in etcd, unless its flag says otherwise.
const DefaultPrefix = "/coil/"

// Dump is what Coil v1 keeps in etcd.
type Dump struct {
	Pools  []DumpedPool // by name
	Blocks []DumpedBlock
	Pods   []DumpedPod // by address
}

// Known is a pod of Coil v1.
type Known struct {
	Namespace, Name, Container, Pool string
	Address                          netip.Addr
}

// DumpedPool is an address pool. Its name is that of the namespace whose pods use it, or default.
type DumpedPool struct {
	Name    string
	Subnets []netip.Prefix
	Bits    int // the block size as a power of two
	layout  block.Layout
}

// DumpedBlock is a block that a node has.
type DumpedBlock struct {
	Pool, Node string
	Prefix     netip.Prefix
	Index      int64
}

// DumpedPod is a pod with an address. Versions before 1.1.0 did not store the container.
type DumpedPod struct {
	Known
	Node string // that has the block; empty: none has
}

// ParseDump reads the output of `etcdctl get PREFIX --prefix -w json`. The error names the key.
func ParseDump(data []byte, prefix string) (d Dump, err error) {
	var raw struct {
		KVs []struct {
			Key   []byte `json:"key"`
			Value []byte `json:"value"`
		} `json:"kvs"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return d, fmt.Errorf("read the dump of etcd: %w", err)
	}
	of := map[string]map[string][]byte{}
	for _, kv := range raw.KVs {
		rest, ok := strings.CutPrefix(string(kv.Key), prefix)
		kind, name, named := strings.Cut(rest, "/")
		if !ok || !named {
			continue // another program's
		}
		if of[kind] == nil {
			of[kind] = map[string][]byte{}
		}
		of[kind][name] = kv.Value
	}
	if len(of["pool"]) == 0 {
		return d, fmt.Errorf("the dump of etcd has no key %spool/NAME: expected the output of etcdctl get %s --prefix -w json", prefix, prefix)
	}
	for name, value := range of["pool"] {
		if err := d.addPool(name, value); err != nil {
			return d, fmt.Errorf("%spool/%s: %w", prefix, name, err)
		}
	}
	slices.SortFunc(d.Pools, func(a, b DumpedPool) int { return cmp.Compare(a.Name, b.Name) })
	for name, value := range of["block"] {
		if err := d.addBlocks(name, value); err != nil {
			return d, fmt.Errorf("%sblock/%s: %w", prefix, name, err)
		}
	}
	slices.SortFunc(d.Blocks, func(a, b DumpedBlock) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Index, b.Index)) })
	for name, value := range of["ip"] {
		if err := d.addPod(name, value); err != nil {
			return d, fmt.Errorf("%sip/%s: %w", prefix, name, err)
		}
	}
	slices.SortFunc(d.Pods, func(a, b DumpedPod) int { return a.Address.Compare(b.Address) })
	return d, nil
}

func (d *Dump) addPool(name string, value []byte) error {
	var v struct {
		Subnets []netip.Prefix `json:"subnets"`
		Size    int            `json:"block_size"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	var subnets []block.Subnet
	for _, s := range v.Subnets {
		subnets = append(subnets, block.Subnet{IPv4: s})
	}
	l, err := block.Parse(v.Size, subnets)
	if err != nil {
		return err
	}
	d.Pools = append(d.Pools, DumpedPool{name, v.Subnets, v.Size, l})
	return nil
}

// Pool returns a pool by its name.
func (d *Dump) Pool(name string) (DumpedPool, error) {
	i := slices.IndexFunc(d.Pools, func(p DumpedPool) bool { return p.Name == name })
	if i < 0 {
		return DumpedPool{}, fmt.Errorf("there is no pool %s", name)
	}
	return d.Pools[i], nil
}

func (d *Dump) addBlocks(name string, value []byte) error {
	of, _, _ := strings.Cut(name, "/")
	p, err := d.Pool(of)
	if err != nil {
		return err
	}
	var v struct {
		Nodes map[string][]netip.Prefix `json:"nodes"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	for node, list := range v.Nodes {
		for _, prefix := range list {
			index, ok := p.layout.Find(prefix.Addr())
			if piece, err := p.layout.Block(index); !ok || err != nil || piece.IPv4 != prefix {
				return fmt.Errorf("nodes[%s]: %s is not a block of the pool", node, prefix)
			}
			d.Blocks = append(d.Blocks, DumpedBlock{p.Name, node, prefix, index})
		}
	}
	return nil
}

func (d *Dump) addPod(name string, value []byte) error {
	first, text, _ := strings.Cut(name, "/")
	base, err := netip.ParseAddr(first)
	if err != nil || !base.Is4() {
		return errors.New("expected BLOCK/OFFSET")
	}
	offset, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fmt.Errorf("the offset is %q: expected a number", text)
	}
	p := DumpedPod{Known: Known{Address: base}}
	for range offset {
		p.Address = p.Address.Next()
	}
	var v struct {
		Container string `json:"container_id"`
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
	}
	if err := json.Unmarshal(value, &v); err == nil {
		p.Container, p.Namespace, p.Name = v.Container, v.Namespace, v.Pod
	} else { // before version 1.1.0
		p.Namespace, p.Name, _ = strings.Cut(string(value), "/")
	}
	if p.Namespace == "" || p.Name == "" {
		return fmt.Errorf("the value is %.100q: expected a namespace and a pod", value)
	}
	for _, b := range d.Blocks {
		if b.Prefix.Contains(p.Address) {
			p.Node, p.Pool = b.Node, b.Pool
		}
	}
	d.Pods = append(d.Pods, p)
	return nil
}

// Of returns the pods of a node.
func (d *Dump) Of(node string) []Known {
	list := []Known{}
	for _, p := range d.Pods {
		if p.Node == node {
			list = append(list, p.Known)
		}
	}
	return list
}

// Manifests returns pools and blocks as objects of Coil v2, with the annotations that give namespaces their pools. None of
// the blocks is reserved, since the addresses of their pods are known.
func (d *Dump) Manifests() ([]byte, error) {
	var docs []map[string]any
	meta := func(kind, name string, labels map[string]string) map[string]any {
		m := map[string]any{"name": name}
		if labels != nil {
			m["labels"] = labels
		}
		return map[string]any{"apiVersion": "coil.cybozu.com/v2", "kind": kind, "metadata": m}
	}
	for _, p := range d.Pools {
		o := meta("AddressPool", p.Name, nil)
		var subnets []map[string]string
		for _, s := range p.Subnets {
			subnets = append(subnets, map[string]string{"ipv4": s.String()})
		}
		o["spec"] = map[string]any{"blockSizeBits": p.Bits, "subnets": subnets}
		docs = append(docs, o)
	}
	for _, b := range d.Blocks {
		o := meta("AddressBlock", fmt.Sprintf("%s-%d", b.Pool, b.Index), map[string]string{"coil.cybozu.com/pool": b.Pool, "coil.cybozu.com/node": b.Node})
		o["index"], o["ipv4"] = b.Index, b.Prefix.String()
		docs = append(docs, o)
	}
	for _, p := range d.Pools {
		if p.Name != "default" {
			docs = append(docs, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
				"name": p.Name, "annotations": map[string]string{"coil.cybozu.com/pool": p.Name},
			}})
		}
	}
	var out []byte
	for _, o := range docs {
		text, err := yaml.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", o["kind"], err)
		}
		out = append(append(out, "---\n"...), text...)
	}
	return out, nil
}
