package policytable

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// Expected is an element of a policy's set that the kernel should have, or should not.
type Expected struct {
	Set policy.SetID
	policy.Element
	Has bool
}

// Compare compares the kernel with what was applied, as far as it affects connections of some pods of the node: rules, the
// chains that the pods' addresses lead to, and some elements of sets. The error names the difference.
func (t *Table) Compare(pods []netip.Addr, elements []Expected) error {
	for again := 0; ; again++ {
		have, changes := t.snapshot()
		if have == nil {
			return errors.New("the table is being replaced")
		}
		err := t.compare(*have, pods, elements)
		if _, now := t.snapshot(); err == nil || now == changes || again == maxCompares {
			return err
		}
	}
}

// maxCompares limits how often the comparison is repeated because the kernel's state was changed in the meantime.
const maxCompares = 3

// snapshot returns what was applied, nil if unknown, and the number of changes.
func (t *Table) snapshot() (*content, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.have == nil {
		return nil, t.changes
	}
	have := t.have.flat()
	have.aliases = maps.Clone(have.aliases)
	return &have, t.changes
}

// compare compares the kernel with a content. It does not block changes, because maps of ports may be large.
func (t *Table) compare(have content, pods []netip.Addr, elements []Expected) error {
	present, err := t.present(have)
	if err != nil {
		return err
	}
	if !present {
		return errors.New("rules are missing or differ")
	}
	mapsOf, err := t.open()
	if err != nil {
		return err
	}
	if err := have.compareMaps(mapsOf, pods); err != nil {
		return err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(t.ns)})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer func() { _ = conn.Close() }()
	in := map[policy.Element]map[policy.SetID]bool{}
	for _, e := range elements {
		if in[e.Element] == nil {
			in[e.Element] = map[policy.SetID]bool{}
		}
		in[e.Element][e.Set] = e.Has
	}
	for e, expected := range in {
		if err := have.compareElement(conn, e, expected); err != nil {
			return err
		}
	}
	return nil
}

// compareElement checks which sets have an element. It ignores sets without an expectation and unions with one of these, and
// sets that no rule needs because another policy accepts every peer.
func (c content) compareElement(conn *netlink.Conn, e policy.Element, expected map[policy.SetID]bool) error {
	for _, name := range sorted(c.sets, func(_ string, s set) bool { return len(s.ids) > 0 }) {
		s := c.sets[name]
		key, ok := s.key(e)
		known, want := 0, false
		for _, id := range s.ids {
			if has, expects := expected[id]; expects {
				known, want = known+1, want || has
			}
		}
		if !ok || known < len(s.ids) {
			continue
		}
		switch has, err := hasElement(conn, cmp.Or(c.aliases[name], name), key); {
		case err != nil:
			return err
		case has && !want:
			return fmt.Errorf("set %s has %s, and should not", name, e.Addr)
		case !has && want:
			return fmt.Errorf("set %s lacks %s", name, e.Addr)
		}
	}
	return nil
}

// compareMaps compares the chains that ports and the addresses of pods lead to.
func (c content) compareMaps(conn *nftables.Conn, pods []netip.Addr) error {
	for _, name := range sorted(c.sets) {
		s := c.sets[name]
		if !s.kind.IsMap {
			continue
		}
		handle := transaction{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: Name}}.handle(name, s)
		list, err := conn.GetSetElements(handle)
		if err != nil {
			return fmt.Errorf("nftables: list map %s: %w", name, err)
		}
		chains := map[string]string{}
		for _, e := range list {
			chains[string(e.Key)] = string(e.Val)
			if s.verdict != 0 {
				chains[string(e.Key)] = verdictChain(e.Val)
			}
		}
		if s.verdict != 0 && !maps.Equal(chains, s.elements) {
			return fmt.Errorf("map %s leads to other chains", name)
		}
		for _, a := range pods {
			has, wants := chains[string(a.AsSlice())], s.elements[string(a.AsSlice())]
			if rtnl.FamilyOf(a) == s.family && has != wants {
				return fmt.Errorf("map %s leads from %s to chain %q, want %q", name, a, has, wants)
			}
		}
	}
	return nil
}

// verdictChain returns the chain of a verdict, which the library leaves encoded.
func verdictChain(verdict []byte) string {
	attrs, _ := netlink.UnmarshalAttributes(verdict)
	for _, a := range attrs {
		if a.Type == unix.NFTA_VERDICT_CHAIN {
			return strings.TrimRight(string(a.Data), "\x00")
		}
	}
	return ""
}

// hasElement reports whether a set of the table has an element.
func hasElement(conn *netlink.Conn, set string, key []byte) (bool, error) {
	nested := func(kind uint16, data []byte) []byte {
		b, _ := netlink.MarshalAttributes([]netlink.Attribute{{Type: kind | unix.NLA_F_NESTED, Data: data}})
		return b
	}
	value, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: key}})
	if err != nil {
		return false, err
	}
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: append([]byte(Name), 0)},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: append([]byte(set), 0)},
		{Type: unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED, Data: nested(unix.NFTA_LIST_ELEM, nested(unix.NFTA_SET_ELEM_KEY, value))},
	})
	if err != nil {
		return false, err
	}
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, data...),
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("nftables: look up an element of set %s: %w", set, err)
	}
	return true, nil
}
