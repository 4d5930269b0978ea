package kernelstate

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// maxElements is the maximum number of elements written for a set.
const maxElements = 2048

// Nftables writes the tables of all families, with chains, rules and sets. A rule is written as its comment and its
// expressions, as by `nft --debug=netlink`.
func Nftables(w io.Writer) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		err = fmt.Errorf("list chains: %w", err)
	}
	for _, t := range tables {
		err = errors.Join(err, writeTable(w, conn, t, chains))
	}
	return err
}

var nftFamilies = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
}

func writeTable(w io.Writer, conn *nftables.Conn, t *nftables.Table, chains []*nftables.Chain) error {
	name := nftFamilies[t.Family] + " " + t.Name
	if _, err := fmt.Fprintf(w, "table %s { # flags %#x\n", name, t.Flags); err != nil {
		return err
	}
	sets, err := conn.GetSets(t)
	if err != nil {
		err = fmt.Errorf("list sets of %s: %w", name, err)
	}
	for _, s := range sets {
		err = errors.Join(err, writeSet(w, conn, s))
	}
	for _, c := range chains {
		if c.Table.Name == t.Name && c.Table.Family == t.Family {
			err = errors.Join(err, writeChain(w, conn, t, c))
		}
	}
	_, writeErr := fmt.Fprintln(w, "}")
	return errors.Join(err, writeErr)
}

func writeSet(w io.Writer, conn *nftables.Conn, s *nftables.Set) error {
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
	line = append(line, fmt.Sprintf("{ # %d elements", len(elements)))
	writeErr := line.line(w)
	for i, e := range elements {
		if i == maxElements {
			_, more := fmt.Fprintf(w, "    # and %d more\n", len(elements)-i)
			writeErr = errors.Join(writeErr, more)
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
		writeErr = errors.Join(writeErr, line.line(w))
	}
	_, endErr := fmt.Fprintln(w, "  }")
	return errors.Join(err, writeErr, endErr)
}

func writeChain(w io.Writer, conn *nftables.Conn, t *nftables.Table, c *nftables.Chain) error {
	line := words{"  chain", c.Name, "{"}
	if c.Hooknum != nil && c.Priority != nil {
		line = append(line, fmt.Sprintf("type %s hook %d priority %d", c.Type, *c.Hooknum, *c.Priority))
		if c.Policy != nil {
			line = append(line, "policy", map[nftables.ChainPolicy]string{nftables.ChainPolicyDrop: "drop", nftables.ChainPolicyAccept: "accept"}[*c.Policy])
		}
		line.add("device", c.Device)
	}
	writeErr := line.line(w)
	rules, err := conn.GetRules(t, c)
	if err != nil {
		err = fmt.Errorf("rules of %s %s %s: %w", nftFamilies[t.Family], t.Name, c.Name, err)
	}
	for _, r := range rules {
		line := words{fmt.Sprintf("    # handle %d", r.Handle)}
		if comment, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok {
			line = append(line, fmt.Sprintf("%q", comment))
		}
		writeErr = errors.Join(writeErr, line.line(w))
		for _, e := range r.Exprs {
			_, exprErr := fmt.Fprintln(w, "     ", expression(e))
			writeErr = errors.Join(writeErr, exprErr)
		}
	}
	_, endErr := fmt.Fprintln(w, "  }")
	return errors.Join(err, writeErr, endErr)
}

// expression is the name of an expression with its non-zero fields.
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
