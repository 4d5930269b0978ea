package kernelstate

import (
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// maxElements is the most elements of a set that are written.
const maxElements = 2048

// nftablesText has the tables of all families, with chains, rules and sets. A rule is written as its comment and its
// expressions, as by `nft --debug=netlink`.
func nftablesText() (t text, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		err = fmt.Errorf("list chains: %w", err)
	}
	for _, table := range tables {
		err = errors.Join(err, t.table(conn, table, chains))
	}
	return t, err
}

var nftFamilies = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
}

func (t *text) table(conn *nftables.Conn, table *nftables.Table, chains []*nftables.Chain) error {
	name := nftFamilies[table.Family] + " " + table.Name
	t.line("table %s { # flags %#x", name, table.Flags)
	sets, err := conn.GetSets(table)
	if err != nil {
		err = fmt.Errorf("list sets of %s: %w", name, err)
	}
	for _, s := range sets {
		err = errors.Join(err, t.set(conn, s))
	}
	for _, c := range chains {
		if c.Table.Name == table.Name && c.Table.Family == table.Family {
			err = errors.Join(err, t.chain(conn, table, c))
		}
	}
	t.line("}")
	return err
}

func (t *text) set(conn *nftables.Conn, s *nftables.Set) error {
	elements, err := conn.GetSetElements(s)
	if err != nil {
		err = fmt.Errorf("elements of set %s: %w", s.Name, err)
	}
	kind := "set"
	if s.IsMap {
		kind = "map"
	}
	line := words{"  " + kind, s.Name, "type", s.KeyType.Name}
	line.add(":", s.DataType.Name)
	line.add("interval", s.Interval)
	line.add("timeout", s.Timeout)
	line.add("comment", s.Comment)
	t.words(append(line, fmt.Sprintf("{ # %d elements", len(elements))))
	for i, e := range elements {
		if i == maxElements {
			t.line("    # and %d more", len(elements)-i)
			break
		}
		line := words{"    " + hex.EncodeToString(e.Key)}
		line.add("-", hex.EncodeToString(e.KeyEnd))
		line.add("end", e.IntervalEnd)
		line.add(":", hex.EncodeToString(e.Val))
		if e.VerdictData != nil {
			line = append(line, ":", expression(e.VerdictData))
		}
		line.add("expires", e.Expires)
		line.add("comment", e.Comment)
		t.words(line)
	}
	t.line("  }")
	return err
}

func (t *text) chain(conn *nftables.Conn, table *nftables.Table, c *nftables.Chain) error {
	line := words{"  chain", c.Name, "{"}
	if c.Hooknum != nil && c.Priority != nil {
		line = append(line, fmt.Sprintf("type %s hook %d priority %d", c.Type, *c.Hooknum, *c.Priority))
		if c.Policy != nil {
			line = append(line, "policy", map[nftables.ChainPolicy]string{nftables.ChainPolicyDrop: "drop", nftables.ChainPolicyAccept: "accept"}[*c.Policy])
		}
		line.add("device", c.Device)
	}
	t.words(line)
	rules, err := conn.GetRules(table, c)
	if err != nil {
		err = fmt.Errorf("rules of %s %s %s: %w", nftFamilies[table.Family], table.Name, c.Name, err)
	}
	for _, r := range rules {
		line := words{fmt.Sprintf("    # handle %d", r.Handle)}
		if comment, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok {
			line = append(line, fmt.Sprintf("%q", comment))
		}
		t.words(line)
		for _, e := range r.Exprs {
			t.line("      %s", expression(e))
		}
	}
	t.line("  }")
	return err
}

// expression is the name of an expression with those of its fields that are set.
func expression(e expr.Any) string {
	v := reflect.Indirect(reflect.ValueOf(e))
	if v.Kind() != reflect.Struct {
		return fmt.Sprintf("%T", e)
	}
	out := []string{"[", strings.ToLower(v.Type().Name())}
	for i := range v.NumField() {
		f := v.Field(i)
		if !v.Type().Field(i).IsExported() || f.IsZero() {
			continue
		}
		value := fmt.Sprintf("%+v", f.Interface())
		if f.Type() == reflect.TypeFor[[]byte]() {
			value = "0x" + hex.EncodeToString(f.Bytes())
		} else if f.Kind() == reflect.Interface || f.Kind() == reflect.Pointer {
			value = fmt.Sprintf("%+v", reflect.Indirect(f.Elem()))
		}
		out = append(out, strings.ToLower(v.Type().Field(i).Name), value)
	}
	return strings.Join(append(out, "]"), " ")
}
