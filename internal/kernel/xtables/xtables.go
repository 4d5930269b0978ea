// Package xtables removes rules and chains from tables of iptables-legacy, without the program.
//
//	xtables.go  what is removed: a function of the table's bytes
//	kernel.go   tables of the calling thread's network namespace
//	lock.go     the lock of programs that change tables
//
// The layouts are those of 64-bit Linux: struct ipt_entry and ip6t_entry (linux/netfilter_ipv4/ip_tables.h,
// linux/netfilter_ipv6/ip6_tables.h), struct xt_entry_match and xt_entry_target (linux/netfilter/x_tables.h).
package xtables

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Select says what to remove.
type Select struct {
	Chain   func(name string) bool // user-defined chains, with the rules that jump to them
	Comment func(text string) bool // rules with a comment
}

// The built-in chains, in the order of the kernel's hooks.
var builtin = [hooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

const hooks = 5

// layout is the part of the structures that differs by IP family.
type layout struct {
	targetOffset int // offset of the field target_offset, which next_offset follows
	elements     int // offset of the first match
}

var (
	layout4 = layout{targetOffset: 88, elements: 112}
	layout6 = layout{targetOffset: 140, elements: 168}
)

const (
	elementHeader = 32 // of a match or target: its size, its name, its revision
	nameOffset    = 2
	nameLen       = 29
)

// table is a table as the kernel returns it.
type table struct {
	layout
	hookEntry [hooks]uint32
	underflow [hooks]uint32
	hooks     uint32 // bits of the chains that exist
	entries   []byte
}

// entry is a rule, the head of a user-defined chain or the policy at the end of a chain.
type entry struct {
	at      int
	raw     []byte // of table.entries
	verdict []byte // of raw, of a standard target: a jump, or negative
	head    string // the name of the chain that it begins
	chain   string // the chain that it is part of
	comment string
}

// jump returns the offset of the entry that a rule continues with if it matches; false: it decides.
func (e entry) jump() (to int, ok bool) {
	if e.verdict == nil {
		return 0, false
	}
	v := int32(binary.NativeEndian.Uint32(e.verdict))
	return int(v), v >= 0
}

func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// element reads a match or target at the beginning of b.
func element(b []byte) (name string, data, rest []byte, err error) {
	if len(b) < elementHeader {
		return "", nil, nil, fmt.Errorf("%d bytes, expected a match or target", len(b))
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < elementHeader || size > len(b) {
		return "", nil, nil, fmt.Errorf("a match or target of %d bytes in %d", size, len(b))
	}
	return text(b[nameOffset : nameOffset+nameLen]), b[elementHeader:size], b[size:], nil
}

// parse reads the entries of a table.
func (t table) parse() (list []entry, err error) {
	starts := map[int]string{}
	for i, name := range builtin {
		if t.hooks&(1<<i) != 0 {
			starts[int(t.hookEntry[i])] = name
		}
	}
	chain := ""
	for at := 0; at < len(t.entries); {
		e, err := t.entry(at)
		if err != nil {
			return nil, fmt.Errorf("entry at %d of %d: %w", at, len(t.entries), err)
		}
		if name := starts[at]; name != "" {
			chain = name
		}
		if e.head != "" {
			chain = e.head
		}
		e.chain = chain
		list, at = append(list, e), at+len(e.raw)
	}
	return list, nil
}

func (t table) entry(at int) (e entry, err error) {
	b := t.entries[at:]
	if len(b) < t.elements {
		return e, fmt.Errorf("%d bytes, expected at least %d", len(b), t.elements)
	}
	target, next := int(binary.NativeEndian.Uint16(b[t.targetOffset:])), int(binary.NativeEndian.Uint16(b[t.targetOffset+2:]))
	if target < t.elements || next < target || next > len(b) {
		return e, fmt.Errorf("target at %d, next entry at %d", target, next)
	}
	e = entry{at: at, raw: b[:next]}
	for matches := b[t.elements:target]; len(matches) > 0; {
		var name string
		var data []byte
		if name, data, matches, err = element(matches); err != nil {
			return e, err
		}
		if name == "comment" {
			e.comment = text(data)
		}
	}
	name, data, _, err := element(b[target:next])
	switch {
	case err != nil:
		return e, err
	case name == "" && len(data) >= 4:
		e.verdict = data[:4]
	case name == "ERROR":
		e.head = text(data)
	}
	return e, nil
}

// without returns the table without what is selected, which of its entries are left, and what was removed.
func (t table) without(s Select) (next table, kept []bool, removed []string, err error) {
	list, err := t.parse()
	if err != nil {
		return table{}, nil, nil, err
	}
	gone := map[string]bool{}
	chainAt := map[int]string{} // by the offset of the entry after the head, to which rules jump
	for i, e := range list {
		if e.head == "" || i == len(list)-1 { // the last one ends the table
			continue
		}
		chainAt[e.at+len(e.raw)] = e.head
		if gone[e.head] = s.Chain(e.head); gone[e.head] {
			removed = append(removed, "chain "+e.head)
		}
	}
	moved := map[int]int{} // offsets
	next = table{layout: t.layout, hooks: t.hooks}
	for i, e := range list {
		to, jumps := e.jump()
		of := i < len(list)-1 && gone[e.chain]
		rule := !of && e.head == "" && (jumps && gone[chainAt[to]] || e.comment != "" && s.Comment(e.comment))
		if rule {
			removed = append(removed, "a rule of chain "+e.chain)
		}
		moved[e.at] = len(next.entries)
		if kept = append(kept, !of && !rule); kept[i] {
			next.entries = append(next.entries, e.raw...)
		}
	}
	at := 0
	for i, e := range list {
		if !kept[i] {
			continue
		}
		if to, jumps := e.jump(); jumps {
			target, known := moved[to]
			if !known {
				return table{}, nil, nil, fmt.Errorf("entry at %d jumps to %d, which begins no entry", e.at, to)
			}
			verdict := next.entries[at+int(binary.NativeEndian.Uint16(e.raw[t.targetOffset:]))+elementHeader:]
			binary.NativeEndian.PutUint32(verdict, uint32(target))
		}
		at += len(e.raw)
	}
	next.moveHooks(t, moved)
	return next, kept, removed, nil
}

// moveHooks sets the entries of hooks to those of another table, whose offsets have changed.
func (t *table) moveHooks(from table, moved map[int]int) {
	for i := range hooks {
		if from.hooks&(1<<i) != 0 {
			t.hookEntry[i], t.underflow[i] = uint32(moved[int(from.hookEntry[i])]), uint32(moved[int(from.underflow[i])])
		}
	}
}
