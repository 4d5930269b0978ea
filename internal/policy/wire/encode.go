package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/policy"
)

const (
	// partElements is the maximum number of sets and set elements in a part of an update.
	partElements = 1000
	// partBytes is the size of policies and pods after which a new part begins. A policy is not split. Its size is limited by
	// that of its object, at most 1.5 MiB (etcd), and compile.MaxBlocks, so that a part is smaller than the 4 MiB that gRPC
	// accepts.
	partBytes = 1 << 19
)

// Encode returns the parts of an update, in the order in which they must be decoded.
func Encode(u *policy.Update) []*Update {
	e := encoder{version: u.Version}
	e.part().Whole = u.Whole
	for name, p := range u.Pods {
		pod := encodePod(name, p)
		part := e.grow(proto.Size(pod))
		part.Pods = append(part.Pods, pod)
	}
	for ref, p := range u.Policies {
		encoded := encodePolicy(ref, p)
		part := e.grow(proto.Size(encoded))
		part.Policies = append(part.Policies, encoded)
	}
	left := partElements
	part := e.parts[len(e.parts)-1]
	for id, change := range u.Sets {
		if left <= 0 {
			part, left = e.part(), partElements
		}
		set := &Set{Id: string(id), Whole: change.Whole}
		part.Sets = append(part.Sets, set)
		left-- // its name: most sets may be empty
		for element, came := range change.Elements {
			if left <= 0 {
				part, left = e.part(), partElements
				set = &Set{Id: string(id)} // for the remaining elements
				part.Sets = append(part.Sets, set)
			}
			if came {
				set.Came = appendElement(set.Came, element)
			} else {
				set.Gone = appendElement(set.Gone, element)
			}
			left--
		}
	}
	return e.parts
}

// encoder creates the parts of an update.
type encoder struct {
	version uint64
	parts   []*Update
	bytes   int // of the last part
}

// part begins a new part.
func (e *encoder) part() *Update {
	if n := len(e.parts); n > 0 {
		e.parts[n-1].More = true
	}
	e.bytes = 0
	e.parts = append(e.parts, &Update{Version: e.version})
	return e.parts[len(e.parts)-1]
}

// grow returns the part with room for more bytes.
func (e *encoder) grow(bytes int) *Update {
	if e.bytes > 0 && e.bytes+bytes > partBytes {
		e.part()
	}
	e.bytes += bytes
	return e.parts[len(e.parts)-1]
}

func encodePod(name policy.PodName, p *policy.Selected) *Pod {
	out := &Pod{Namespace: name.Namespace, Name: name.Name, Gone: p == nil}
	if p != nil {
		out.Uid = p.UID
		for _, ref := range p.Policies {
			out.Policies = append(out.Policies, encodeRef(ref))
		}
	}
	return out
}

func encodeRef(ref policy.Ref) *Ref { return &Ref{Namespace: ref.Namespace, Name: ref.Name} }

func encodePolicy(ref policy.Ref, p *policy.Policy) *Policy {
	out := &Policy{Ref: encodeRef(ref), Gone: p == nil}
	if p != nil {
		out.Tier, out.Priority = int32(p.Tier), p.Priority
		out.Ingress, out.Egress = encodeRules(p, policy.Ingress), encodeRules(p, policy.Egress)
	}
	return out
}

func encodeRules(p *policy.Policy, d policy.Direction) *Rules {
	out := &Rules{Isolates: p.Isolates[d]}
	for _, r := range p.Rules[d] {
		rule := &Rule{Name: r.Name, Action: int32(r.Action), AnyPeer: r.AnyPeer, AnyPort: r.AnyPort, Peers: texts(r.Peers), Named: texts(r.Named)}
		for _, b := range r.Blocks {
			rule.Blocks = append(rule.Blocks, b.String())
		}
		for _, s := range r.Ports {
			rule.Ports = append(rule.Ports, &Ports{Protocol: uint32(s.Protocol), First: uint32(s.First), Last: uint32(s.Last)})
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

func texts(ids []policy.SetID) (out []string) {
	for _, id := range ids {
		out = append(out, string(id))
	}
	return out
}

// appendElement appends an element: the length of its address, the address, protocol and port.
func appendElement(b []byte, e policy.Element) []byte {
	a := e.Addr.AsSlice()
	b = append(append(b, byte(len(a))), a...)
	return binary.BigEndian.AppendUint16(append(b, e.Protocol), e.Port)
}

// elements decodes the output of appendElement.
func elements(b []byte, each func(policy.Element)) error {
	for len(b) > 0 {
		n := int(b[0])
		if n != 4 && n != 16 || len(b) < 1+n+3 {
			return fmt.Errorf("an element of %d bytes: expected an address of 4 or 16 bytes, a protocol and a port", len(b))
		}
		a, _ := netip.AddrFromSlice(b[1 : 1+n])
		each(policy.Element{Addr: a, Protocol: b[1+n], Port: binary.BigEndian.Uint16(b[2+n:])})
		b = b[1+n+3:]
	}
	return nil
}
