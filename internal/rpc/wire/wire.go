// Package wire is the plugin's end of the messages of berth.proto: what it
// sends can be encoded, what it receives decoded, and no more.
//
// The generated code of package rpc would do it too, and costs half a
// millisecond at every start of a process, for the registry and the reflection
// that it sets up (see package unary). A field that is added to berth.proto and
// missing here fails this package's tests.
package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Attachment is the key of an attachment.
type Attachment struct{ Network, ContainerID, IfName string }

// Pod is what Kubernetes' CNI_ARGS tell; empty elsewhere.
type Pod struct{ Namespace, Name, UID string }

// Annotations are those of the pod that are Berth's.
type Annotations struct {
	Pool string            // AnnotationPool once more, for a daemon that does not know All
	All  map[string]string // by key
}

// AnnotationPool is the annotation that has a field of its own: the first release had no
// other.
const AnnotationPool = "berth.dev/pool"

// Set adds an annotation.
func (a *Annotations) Set(key, value string) {
	if a.All == nil {
		a.All = map[string]string{}
	}
	a.All[key] = value
	if key == AnnotationPool {
		a.Pool = value
	}
}

// AddRequest asks for an attachment.
type AddRequest struct {
	Attachment  Attachment
	Netns       string // path of the sandbox's network namespace
	Pod         Pod
	MTU         uint32       // bytes; 0: the daemon's choice
	Annotations *Annotations // nil: the runtime does not tell them
	Pool        string       // the pool of the network configuration; empty without
	Previous    *Previous    // nil: the plugin is the first of its network's list
}

// Previous is what plugins before this one of a network's list made.
type Previous struct {
	Addresses []string // in CIDR form, of the attachment's interface
}

// Encode returns the message's bytes.
func (r AddRequest) Encode() []byte {
	var m message
	m.nest(1, r.Attachment.encode())
	m.text(2, r.Netns)
	m.nest(3, r.Pod.encode())
	m.number(4, r.MTU)
	if r.Annotations != nil {
		m.nest(5, r.Annotations.encode())
	}
	m.text(6, r.Pool)
	if r.Previous != nil {
		var previous message
		for _, a := range r.Previous.Addresses {
			previous.nest(1, []byte(a))
		}
		m.nest(7, previous)
	}
	return m
}

// DelRequest asks for an attachment's end.
type DelRequest struct {
	Attachment Attachment
	Netns      string // empty when the runtime has none any more
}

// Encode returns the message's bytes.
func (r DelRequest) Encode() []byte {
	var m message
	m.nest(1, r.Attachment.encode())
	m.text(2, r.Netns)
	return m
}

// CheckRequest asks whether an attachment is as it should be.
type CheckRequest struct {
	Attachment Attachment
	Netns      string
	Addresses  []string // of prevResult, in CIDR form, of the attachment's interface
	Links      []Link   // further interfaces of the sandbox in prevResult
}

// Encode returns the message's bytes.
func (r CheckRequest) Encode() []byte {
	var m message
	m.nest(1, r.Attachment.encode())
	m.text(2, r.Netns)
	for _, a := range r.Addresses {
		m.nest(3, []byte(a))
	}
	for _, l := range r.Links {
		m.nest(4, l.encode())
	}
	return m
}

// GCRequest asks for the end of a network's attachments that are not valid.
type GCRequest struct {
	Network string
	Valid   []Attachment
}

// Encode returns the message's bytes.
func (r GCRequest) Encode() []byte {
	var m message
	m.text(1, r.Network)
	for _, a := range r.Valid {
		m.nest(2, a.encode())
	}
	return m
}

// StatusRequest asks whether the node takes pods.
type StatusRequest struct{ Network string }

// Encode returns the message's bytes.
func (r StatusRequest) Encode() []byte {
	var m message
	m.text(1, r.Network)
	return m
}

func (a Attachment) encode() []byte {
	var m message
	m.text(1, a.Network)
	m.text(2, a.ContainerID)
	m.text(3, a.IfName)
	return m
}

func (p Pod) encode() []byte {
	var m message
	m.text(1, p.Namespace)
	m.text(2, p.Name)
	m.text(3, p.UID)
	return m
}

func (a Annotations) encode() []byte {
	var m message
	m.text(1, a.Pool)
	for key, value := range a.All {
		var entry message // how a map is encoded: protobuf.dev, "Maps"
		entry.text(1, key)
		entry.text(2, value)
		m.nest(2, entry)
	}
	return m
}

func (l Link) encode() []byte {
	var m message
	m.nest(1, l.Host.encode())
	m.nest(2, l.Sandbox.encode())
	for _, a := range l.Addresses {
		var address message
		address.text(1, a.CIDR)
		address.text(2, a.Gateway)
		m.nest(3, address)
	}
	for _, r := range l.Routes {
		var route message
		route.text(1, r.Dst)
		route.text(2, r.Gateway)
		m.nest(4, route)
	}
	m.number(5, l.MTU)
	return m
}

func (i Interface) encode() []byte {
	var m message
	m.text(1, i.Name)
	m.text(2, i.MAC)
	return m
}

// message grows by fields. As in proto3, text and numbers that are zero are
// left out.
type message []byte

func (m *message) nest(field protowire.Number, b []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), b)
}

func (m *message) text(field protowire.Number, s string) {
	if s != "" {
		*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), s)
	}
}

func (m *message) number(field protowire.Number, n uint32) {
	if n != 0 {
		*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), uint64(n))
	}
}

// AddReply is an attachment that was made.
type AddReply struct {
	Host, Sandbox Interface // Host without a name: there is no link of it on the node
	Addresses     []string  // in CIDR form
	Routes        []Route   // in the sandbox
	MTU           uint32
	Links         []Link // further interfaces of the sandbox
	Chained       bool   // the interface is what plugins before this one made
}

// Link is a further interface of a sandbox.
type Link struct {
	Host, Sandbox Interface
	Addresses     []Address
	Routes        []Route // by it
	MTU           uint32
}

// Address is one of a Link.
type Address struct{ CIDR, Gateway string } // Gateway of its subnet, or empty

// Interface is one end of an attachment.
type Interface struct{ Name, MAC string }

// Route is one of the sandbox.
type Route struct{ Dst, Gateway string } // a CIDR; empty for a link route

// Failure is a CNI error.
type Failure struct {
	Code             uint32
	Message, Details string
}

// Decode reads the message from its bytes, into a zero AddReply.
func (r *AddReply) Decode(b []byte) error {
	return Fields(b, func(field protowire.Number, n uint64) {
		switch field {
		case 5:
			r.MTU = uint32(n)
		case 7:
			r.Chained = n != 0
		}
	}, func(field protowire.Number, v []byte) error {
		switch field {
		case 1:
			return r.Host.decode(v)
		case 2:
			return r.Sandbox.decode(v)
		case 3:
			r.Addresses = append(r.Addresses, string(v))
		case 4:
			var route Route
			err := route.decode(v)
			r.Routes = append(r.Routes, route)
			return err
		case 6:
			var link Link
			err := link.decode(v)
			r.Links = append(r.Links, link)
			return err
		}
		return nil
	})
}

func (l *Link) decode(b []byte) error {
	return Fields(b, func(field protowire.Number, n uint64) {
		if field == 5 {
			l.MTU = uint32(n)
		}
	}, func(field protowire.Number, v []byte) error {
		switch field {
		case 1:
			return l.Host.decode(v)
		case 2:
			return l.Sandbox.decode(v)
		case 3:
			var address Address
			err := address.decode(v)
			l.Addresses = append(l.Addresses, address)
			return err
		case 4:
			var route Route
			err := route.decode(v)
			l.Routes = append(l.Routes, route)
			return err
		}
		return nil
	})
}

func (a *Address) decode(b []byte) error {
	return Fields(b, nil, func(field protowire.Number, v []byte) error {
		switch field {
		case 1:
			a.CIDR = string(v)
		case 2:
			a.Gateway = string(v)
		}
		return nil
	})
}

func (i *Interface) decode(b []byte) error {
	return Fields(b, nil, func(field protowire.Number, v []byte) error {
		switch field {
		case 1:
			i.Name = string(v)
		case 2:
			i.MAC = string(v)
		}
		return nil
	})
}

func (r *Route) decode(b []byte) error {
	return Fields(b, nil, func(field protowire.Number, v []byte) error {
		switch field {
		case 1:
			r.Dst = string(v)
		case 2:
			r.Gateway = string(v)
		}
		return nil
	})
}

// FailureType is the name by which a status carries a Failure.
const FailureType = "berth.v1.Failure"

// Decode reads the message from its bytes, into a zero Failure.
func (e *Failure) Decode(b []byte) error {
	return Fields(b, func(field protowire.Number, n uint64) {
		if field == 1 {
			e.Code = uint32(n)
		}
	}, func(field protowire.Number, v []byte) error {
		switch field {
		case 2:
			e.Message = string(v)
		case 3:
			e.Details = string(v)
		}
		return nil
	})
}

var errMalformed = errors.New("malformed message")

// Fields goes through a message and calls number for each field that is a
// varint, and bytes for each that has a length, in turn, those included that
// the caller does not know; either may be nil. It stops at the first error.
func Fields(b []byte, number func(protowire.Number, uint64), bytes func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(n))
		}
		value := b[n:]
		n = protowire.ConsumeFieldValue(field, kind, value)
		if n < 0 {
			return fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(n))
		}
		b = value[n:]
		switch {
		case kind == protowire.VarintType && number != nil:
			v, _ := protowire.ConsumeVarint(value)
			number(field, v)
		case kind == protowire.BytesType && bytes != nil:
			v, _ := protowire.ConsumeBytes(value)
			if err := bytes(field, v); err != nil {
				return err
			}
		}
	}
	return nil
}
