package datapath

import (
	"strings"
	"testing"
)

func TestForwardPolicy(t *testing.T) {
	for _, c := range []struct {
		name     string
		commands []string
		where    []string // of the findings
		fix      string   // of the first
	}{
		{"nothing", nil, nil, ""},
		{"nft, accepting", []string{"nft add table inet f", "nft add chain inet f c { type filter hook forward priority 0 ; policy accept ; }"}, nil, ""},
		{"nft, dropping input", []string{"nft add table inet f", "nft add chain inet f c { type filter hook input priority 0 ; policy drop ; }"}, nil, ""},
		{"nft inet", []string{"nft add table inet f", "nft add chain inet f c { type filter hook forward priority 0 ; policy drop ; }"},
			[]string{"nftables table inet f, chain c"}, "nft add chain inet f c '{ policy accept; }'"},
		{"nft ip6", []string{"nft add table ip6 f", "nft add chain ip6 f c { type filter hook forward priority 0 ; policy drop ; }"},
			[]string{"nftables table ip6 f, chain c"}, "nft add chain ip6 f c"},
		{"iptables-nft", []string{"iptables-nft -P FORWARD DROP", "ip6tables-nft -P FORWARD DROP"},
			[]string{"nftables table ip filter, chain FORWARD", "nftables table ip6 filter, chain FORWARD"}, "iptables -P FORWARD ACCEPT"},
		{"iptables-legacy", []string{"iptables-legacy -A FORWARD -s 192.0.2.1 -j ACCEPT", "iptables-legacy -A FORWARD -m conntrack --ctstate NEW -p tcp --dport 80 -j REJECT",
			"iptables-legacy -P FORWARD DROP"},
			[]string{"iptables-legacy table filter, chain FORWARD"}, "iptables-legacy -P FORWARD ACCEPT"},
		{"ip6tables-legacy", []string{"ip6tables-legacy -A INPUT -s 2001:db8::1 -j DROP", "ip6tables-legacy -P FORWARD DROP"},
			[]string{"ip6tables-legacy table filter, chain FORWARD"}, "ip6tables-legacy -P FORWARD ACCEPT"},
		{"iptables-legacy, accepting", []string{"iptables-legacy -P INPUT DROP", "iptables-legacy -P OUTPUT DROP", "iptables-legacy -A FORWARD -j DROP"}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSpace(t, "node")
			n := s.open()
			for _, command := range c.commands {
				s.run(command)
			}
			found, err := n.ForwardPolicy(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var where []string
			for _, f := range found {
				where = append(where, f.Where)
			}
			if strings.Join(where, "; ") != strings.Join(c.where, "; ") {
				t.Fatalf("found %q, want %q", where, c.where)
			}
			if len(found) > 0 && !strings.Contains(found[0].Message, c.fix) {
				t.Errorf("found %+v", found[0])
			}
		})
	}
}

func TestForwardPolicyDoesNotCountItsOwnTable(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.config.BlockMetadata = true })
	if found, err := v.node.ForwardPolicy(ctx); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
	if names := v.host.run("cat /proc/net/ip_tables_names"); names != "" {
		t.Errorf("looking loaded the tables %q", names)
	}
}

// What the finding says must be true, and its remedy work.
func TestForwardDropBreaksPodsUntilTheRemedy(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA), v.pod(podB)
	b.serveTCP(":80")
	v.host.run("iptables-legacy -P FORWARD DROP")
	a.cannotReach("", podB+":80")
	found, err := v.node.ForwardPolicy(ctx)
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	_, fix, _ := strings.Cut(found[0].Message, "change its policy: ")
	v.host.run(fix)
	a.seenAs(podB+":80", podA)
	if found, err := v.node.ForwardPolicy(ctx); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
}
