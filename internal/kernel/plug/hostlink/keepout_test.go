package hostlink_test

import (
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
)

// Correct rules are not rewritten and keep their handles, because changes are slow. Changed rules are repaired.
func TestKeepFromNode(t *testing.T) {
	space := plugtest.Space(t, "node")
	n, err := hostlink.Open(space.Path)
	plugtest.Must(t, err)
	t.Cleanup(n.Close)
	conn, err := nftables.New(nftables.WithNetNSFd(int(space.NS)))
	plugtest.Must(t, err)
	table := &nftables.Table{Name: hostlink.NftTable, Family: nftables.TableFamilyINet}
	check := func() string {
		var found plug.Differences
		plugtest.Must(t, n.CheckKept(&found))
		return strings.Join(found, "; ")
	}
	if check() == "" {
		t.Error("CheckKept() found no differences before KeepFromNode()")
	}
	first := func() *nftables.Chain { return &nftables.Chain{Name: "from_switch", Table: table} }
	rules := func() []*nftables.Rule {
		t.Helper()
		plugtest.Must(t, n.KeepFromNode())
		list, err := conn.GetRules(table, first())
		plugtest.Must(t, err)
		if len(list) != 2 {
			t.Fatalf("%d rules in chain from_switch, want 2", len(list))
		}
		return list
	}
	one, again := rules(), rules()
	if one[0].Handle != again[0].Handle || one[1].Handle != again[1].Handle {
		t.Error("KeepFromNode() replaced correct rules")
	}
	plugtest.Must(t, conn.DelRule(again[0]))
	plugtest.Must(t, conn.Flush())
	mended := rules()
	conn.AddRule(&nftables.Rule{Table: table, Chain: first(), Exprs: mended[0].Exprs[:0]})
	plugtest.Must(t, conn.Flush())
	rules()
	conn.DelTable(table)
	plugtest.Must(t, conn.Flush())
	rules()
	if found := check(); found != "" {
		t.Errorf("CheckKept() = %q for correct rules, want no differences", found)
	}
}
