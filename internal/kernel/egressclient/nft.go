package egressclient

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// setFilter replaces Berth's table in one transaction.
func (k *kernel) setFilter(f filter) error {
	return k.do("set nftables table "+tunnel.Table, func() error {
		if err := f.Replace(k.nft); err != nil {
			return err
		}
		return k.nft.Flush()
	})
}

// removeFilter removes the table; a missing one is no error.
func (k *kernel) removeFilter() error {
	return k.do("remove nftables table "+tunnel.Table, func() error {
		nft.Table{Family: nftables.TableFamilyINet, Name: tunnel.Table}.Remove(k.nft)
		return k.nft.Flush()
	})
}

// summary has the chain and comment of each rule, sorted by chain, as filterSummary reads them.
func (f filter) summary() string {
	var lines []string
	for _, c := range f.Chains {
		for _, r := range c.Rules {
			lines = append(lines, c.Name+" "+r.Tagged(f.Tag))
		}
	}
	return join2(lines)
}

func join2(lines []string) string {
	slices.SortStableFunc(lines, func(a, b string) int {
		x, _, _ := strings.Cut(a, " ")
		y, _, _ := strings.Cut(b, " ")
		return strings.Compare(x, y)
	})
	return strings.Join(lines, "\n")
}

// filterSummary reads the summary of the kernel's table; empty: there is none. It does not use the library, which
// cannot decode all expressions of the rules.
func (k *kernel) filterSummary() (string, error) {
	c, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, &mdnetlink.Config{NetNS: k.at.FD()})
	if err != nil {
		return "", fmt.Errorf("open netlink in %s: %w", k.at.Path, err)
	}
	defer func() { _ = c.Close() }()
	table, err := mdnetlink.MarshalAttributes([]mdnetlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: []byte(tunnel.Table + "\x00")}})
	if err != nil {
		return "", fmt.Errorf("encode: %w", err)
	}
	const header = 4 // struct nfgenmsg: family, version, resource
	replies, err := c.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{
			Type:  mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE),
			Flags: mdnetlink.Request | mdnetlink.Dump,
		},
		Data: append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, table...),
	})
	if err != nil {
		return "", fmt.Errorf("list nftables rules in %s: %w", k.at.Path, err)
	}
	var lines []string
	for _, m := range replies {
		if len(m.Data) < header {
			continue
		}
		attrs, err := mdnetlink.UnmarshalAttributes(m.Data[header:])
		if err != nil {
			return "", fmt.Errorf("decode nftables rules: %w", err)
		}
		var chain, comment string
		for _, a := range attrs {
			switch a.Type {
			case unix.NFTA_RULE_CHAIN:
				chain = strings.TrimRight(string(a.Data), "\x00")
			case unix.NFTA_RULE_USERDATA:
				comment, _ = userdata.GetString(a.Data, userdata.TypeComment)
			}
		}
		lines = append(lines, chain+" "+comment)
	}
	return join2(lines), nil
}
