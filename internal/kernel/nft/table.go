// Package nft provides the expressions of nftables rules as functions named after the terms of nft(8), for matches and
// statements. A rule is the concatenation of its parts (Join), and a Table is the desired content of a table. The
// package does not know Berth's tables.
//
// Parts that load a value leave it in Register, where parts that compare or look up read it:
// Join(Source(family), In(set)) is ip saddr @set. A family is unix.AF_INET or unix.AF_INET6.
package nft

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// Rule is a rule and its comment, by which InKernel identifies it.
type Rule struct {
	Comment string
	Exprs   Exprs
}

// NewRule returns a rule made of parts.
func NewRule(comment string, parts ...Exprs) Rule { return Rule{comment, Join(parts...)} }

// Tagged is the rule's comment in the kernel, which ends with the tag of its table.
func (r Rule) Tagged(tag string) string { return r.Comment + " #" + tag }

// UserData is Tagged in the kernel's format.
func (r Rule) UserData(tag string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, r.Tagged(tag))
}

// Chain is a chain and all of its rules. Table need not be set.
type Chain struct {
	nftables.Chain
	Rules []Rule
}

// Base returns a base chain.
func Base(name string, kind nftables.ChainType, hook *nftables.ChainHook, at *nftables.ChainPriority, rules ...Rule) Chain {
	return Chain{nftables.Chain{Name: name, Type: kind, Hooknum: hook, Priority: at}, rules}
}

// Regular returns a chain without a hook.
func Regular(name string, rules ...Rule) Chain { return Chain{nftables.Chain{Name: name}, rules} }

// Set is a set or map with its initial elements.
type Set struct {
	*nftables.Set
	Elements []nftables.SetElement
}

// Table is the desired content of a table. Family must be set.
type Table struct {
	Family nftables.TableFamily
	Name   string
	Sets   []Set
	Chains []Chain
	// Tag is the Fingerprint, set by the caller. Every rule in the kernel has it in its comment, so that the content
	// can be compared without decoding rules.
	Tag string
}

func (t Table) handle() *nftables.Table { return &nftables.Table{Family: t.Family, Name: t.Name} }

// Fingerprint returns a hash of sets, chains and further values. It returns an error if a rule cannot be encoded.
func (t Table) Fingerprint(more ...any) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, more...)
	for _, s := range t.Sets {
		fmt.Fprintln(h, s.Name, s.KeyType.Name, s.Interval, s.IsMap, s.Dynamic)
		for _, e := range s.Elements {
			fmt.Fprintf(h, "%x %t %+v\n", e.Key, e.IntervalEnd, e.VerdictData)
		}
	}
	for _, c := range t.Chains {
		fmt.Fprintln(h, c.Name, c.Type)
		if c.Hooknum != nil {
			fmt.Fprintln(h, *c.Hooknum, *c.Priority)
		}
		for _, r := range c.Rules {
			for _, e := range r.Exprs {
				b, err := expr.Marshal(byte(t.Family), e)
				if err != nil {
					return "", fmt.Errorf("encode rule %q of chain %s: %w", r.Comment, c.Name, err)
				}
				fmt.Fprintf(h, "%x\n", b)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// Replace queues the removal of the table and its new content, which Flush sends in one transaction. It returns an
// error if elements cannot be encoded.
func (t Table) Replace(conn *nftables.Conn) error {
	t.Remove(conn)
	table := conn.AddTable(t.handle())
	for _, c := range t.Chains { // maps refer to the chains
		t.addChain(conn, c)
	}
	for _, s := range t.Sets {
		s.Table = table
		if err := AddSet(conn, s.Set); err != nil {
			return fmt.Errorf("encode set %s: %w", s.Name, err)
		}
		for part := range slices.Chunk(s.Elements, ElementChunk) {
			if err := conn.SetAddElements(s.Set, part); err != nil {
				return fmt.Errorf("encode elements of set %s: %w", s.Name, err)
			}
		}
	}
	for _, c := range t.Chains {
		t.addRules(conn, c)
	}
	return nil
}

// lastSetID is the ID of the last set.
var lastSetID atomic.Uint32

// AddSet queues the creation of a set without elements. It may be called in parallel on several connections, unlike
// nftables.Conn.AddSet for a set without an ID.
func AddSet(conn *nftables.Conn, s *nftables.Set) error {
	if s.ID == 0 {
		s.ID = lastSetID.Add(1)
	}
	return conn.AddSet(s, nil)
}

// Remove queues the removal of the table, which need not exist.
func (t Table) Remove(conn *nftables.Conn) {
	conn.AddTable(t.handle()) // removing a missing table would fail
	conn.DelTable(t.handle())
}

// Refill queues the replacement of the rules of the given chains, and adds missing chains.
func (t Table) Refill(conn *nftables.Conn, chains ...Chain) {
	for _, c := range chains {
		conn.FlushChain(t.addChain(conn, c))
	}
	for _, c := range chains {
		t.addRules(conn, c)
	}
}

func (t Table) addChain(conn *nftables.Conn, c Chain) *nftables.Chain {
	c.Table = t.handle()
	return conn.AddChain(&c.Chain)
}

func (t Table) addRules(conn *nftables.Conn, c Chain) {
	for _, r := range c.Rules {
		conn.AddRule(&nftables.Rule{Table: t.handle(), Chain: &nftables.Chain{Name: c.Name, Table: t.handle()}, Exprs: r.Exprs, UserData: r.UserData(t.Tag)})
	}
}

// There reports whether the kernel has the table, and it is not dormant.
func (t Table) There(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(t.Family)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(have *nftables.Table) bool { return have.Name == t.Name && have.Flags == 0 }), nil
}

// InKernel reports whether the kernel has the table with the rules of all chains and the elements of interval sets,
// which are fixed. It returns false if it cannot read them.
func (t Table) InKernel(conn *nftables.Conn) bool {
	if there, err := t.There(conn); err != nil || !there {
		return false
	}
	for _, c := range t.Chains {
		if !t.Has(conn, c) {
			return false
		}
	}
	for _, s := range t.Sets {
		if !s.Interval {
			continue
		}
		s.Table = t.handle()
		if have, err := conn.GetSetElements(s.Set); err != nil || !SameElements(have, s.Elements) {
			return false
		}
	}
	return true
}

// Has reports whether the kernel has a chain with its rules. It compares comments, whose tag covers the rules' content.
func (t Table) Has(conn *nftables.Conn, c Chain) bool {
	rules, err := conn.GetRules(t.handle(), &nftables.Chain{Name: c.Name, Table: t.handle()})
	return err == nil && slices.EqualFunc(rules, c.Rules, func(have *nftables.Rule, want Rule) bool {
		return bytes.Equal(have.UserData, want.UserData(t.Tag))
	})
}

// SameElements compares the keys of the observed elements of an interval set with the desired ones. It ignores the
// end element that the kernel adds at the first address.
func SameElements(have, want []nftables.SetElement) bool {
	keys := func(list []nftables.SetElement) map[string]bool {
		m := map[string]bool{}
		for _, e := range list {
			if a, _ := netip.AddrFromSlice(e.Key); !e.IntervalEnd || !a.IsUnspecified() {
				m[fmt.Sprintf("%x %t", e.Key, e.IntervalEnd)] = true
			}
		}
		return m
	}
	return maps.Equal(keys(have), keys(want))
}

// Exprs are the expressions of a rule, or of a part of one.
type Exprs = []expr.Any

// Register is the register for loaded values (linux/netfilter/nf_tables.h, NFT_REG_1).
const Register = 1

// Join concatenates the parts of a rule.
func Join(parts ...Exprs) Exprs { return slices.Concat(parts...) }

// Word encodes a number as the kernel stores marks, states and indexes: 32 bits in the machine's byte order.
func Word(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }
