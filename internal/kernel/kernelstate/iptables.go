package kernelstate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Iptables writes which programs of the iptables family have tables here: those of
// iptables-legacy, which the kernel lists, and tables of nftables that have rules as
// iptables-nft makes them. Rules of the first are not shown, those of the second are
// where nftables' are.
func Iptables(w io.Writer) error {
	var failed error
	for _, f := range []struct{ program, file string }{
		{"iptables-legacy", "ip_tables_names"}, {"ip6tables-legacy", "ip6_tables_names"}, {"arptables-legacy", "arp_tables_names"},
	} {
		names, err := os.ReadFile("/proc/thread-self/net/" + f.file)
		switch tables := strings.Fields(string(names)); {
		case errors.Is(err, fs.ErrNotExist):
			_, err = fmt.Fprintf(w, "%s: not in this kernel\n", f.program)
		case err == nil && len(tables) == 0:
			_, err = fmt.Fprintf(w, "%s: no table is loaded\n", f.program)
		case err == nil:
			_, err = fmt.Fprintf(w, "%s: tables %s are loaded\n", f.program, strings.Join(tables, ", "))
		}
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, iptablesNft(w))
}

func iptablesNft(w io.Writer) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	found := map[string]int{}
	var failed error
	for _, c := range chains {
		if f := c.Table.Family; f != nftables.TableFamilyIPv4 && f != nftables.TableFamilyIPv6 {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		failed = errors.Join(failed, err)
		if n := len(slices.DeleteFunc(rules, func(r *nftables.Rule) bool { return !slices.ContainsFunc(r.Exprs, isXtables) })); n > 0 {
			found[nftFamilies[c.Table.Family]+" "+c.Table.Name] += n
		}
	}
	if len(found) == 0 {
		_, err = fmt.Fprintln(w, "iptables-nft: no rule of its making")
	}
	for table, n := range found {
		_, lineErr := fmt.Fprintf(w, "iptables-nft: table %s has %d rules with its matches or targets\n", table, n)
		err = errors.Join(err, lineErr)
	}
	return errors.Join(failed, err)
}

// isXtables tells expressions that only iptables-nft makes.
func isXtables(e expr.Any) bool {
	switch e.(type) {
	case *expr.Match, *expr.Target:
		return true
	}
	return false
}
