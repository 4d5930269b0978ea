package datapath

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Finding is a setting of someone else that breaks pods and that no rule of
// Berth's can override.
type Finding struct {
	Where   string // such as "nftables table ip filter, chain FORWARD"
	Message string // what it does and what to do about it
}

// ForwardPolicy finds packet filters that drop forwarded packets by default,
// which is what a pod's packets are on the node: nftables chains (iptables-nft
// makes such ones too) and the iptables-legacy filter table, if the kernel has
// it loaded. An ACCEPT of Berth's would not help: a packet must pass the chains
// of all tables. A policy of DROP may be fine when rules of its owner accept
// pods, so a Finding is a condition to report, not a failure.
func (n *Node) ForwardPolicy(ctx context.Context) ([]Finding, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	found, err := n.nftForwardDrops()
	if err != nil {
		return nil, err
	}
	legacy, err := n.legacyForwardDrops()
	if err != nil {
		return found, err
	}
	return append(found, legacy...), nil
}

func (k *kernel) nftForwardDrops() ([]Finding, error) {
	conn, err := k.nft()
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, c := range chains {
			if isForwardDrop(c) && !(family == nftables.TableFamilyINet && c.Table.Name == NftTable) {
				found = append(found, nftFinding(family, c))
			}
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Where, b.Where) })
	return found, nil
}

func isForwardDrop(c *nftables.Chain) bool {
	return c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
}

func nftFinding(family nftables.TableFamily, c *nftables.Chain) Finding {
	name := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	}[family]
	fix := fmt.Sprintf("nft add chain %s %s %s '{ policy accept; }'", name, c.Table.Name, c.Name)
	if c.Table.Name == "filter" && c.Name == "FORWARD" && family != nftables.TableFamilyINet { // as iptables-nft names it
		command := "iptables"
		if family == nftables.TableFamilyIPv6 {
			command = "ip6tables"
		}
		fix = command + " -P FORWARD ACCEPT"
	}
	return finding(fmt.Sprintf("nftables table %s %s, chain %s", name, c.Table.Name, c.Name), fix)
}

func finding(where, fix string) Finding {
	return Finding{Where: where, Message: fmt.Sprintf(
		"%s drops forwarded packets unless a rule there accepts them, and with them those of pods; "+
			"let it accept the pods' addresses, or change its policy: %s", where, fix)}
}
