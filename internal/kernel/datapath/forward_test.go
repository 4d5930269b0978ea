package datapath

import (
	"strings"
	"testing"
)

func TestForwardPolicy(t *testing.T) {
	for _, c := range []struct {
		name     string
		commands []string
		where    []string // places of the findings
		fix      string   // remedy of the first
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
		{"iptables-legacy, accepting", []string{"iptables-legacy -P INPUT DROP", "iptables-legacy -P OUTPUT DROP", "iptables-legacy -A INPUT -j DROP"}, nil, ""},

		// Rules that reject every packet that reaches them.
		{"nft inet, rule", nftForward("ct state established,related accept", "counter log reject with icmpx admin-prohibited"),
			[]string{"nftables table inet f, chain c"}, `by a rule of chain c, unless a rule before it accepts them; accept packets from and to links bth* before it: nft insert rule inet f c iifname "bth*" accept`},
		{"nft, IPv6 rule", nftForward("meta nfproto ipv6 drop"), []string{"nftables table inet f, chain c"}, "nft insert rule"},
		{"nft, rule from other links", nftForward("iifname != lo drop"), []string{"nftables table inet f, chain c"}, "nft insert rule"},
		{"nft, rule to other links", nftForward("oifname != eth0 drop"), []string{"nftables table inet f, chain c"}, "nft insert rule"},
		{"nft, rule in a chain", append(nftForward("ct state established accept", "jump zones", "drop"), "nft add rule inet f zones iifname eth0 accept", "nft add rule inet f zones reject"),
			[]string{"nftables table inet f, chain c"}, "by a rule of chain zones, "},
		{"nft, rule after a return", append(nftForward("jump zones", "reject"), "nft add rule inet f zones return", "nft add rule inet f zones drop"),
			[]string{"nftables table inet f, chain c"}, "by a rule of chain c, "},
		{"nft, policy after a goto", append(nftForward("goto zones", "accept"), "nft add chain inet f c { policy drop ; }"),
			[]string{"nftables table inet f, chain c"}, "nft add chain inet f c '{ policy accept; }'"},
		{"firewalld", []string{"nft add table inet firewalld", "nft add chain inet firewalld filter_FORWARD { type filter hook forward priority 10 ; }",
			"nft add rule inet firewalld filter_FORWARD ct state { established, related } accept", "nft add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited"},
			[]string{"nftables table inet firewalld, chain filter_FORWARD"}, "stop firewalld: systemctl disable --now firewalld"},
		{"iptables-nft, rules", []string{"iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT", "iptables-nft -A FORWARD -j REJECT --reject-with icmp-host-prohibited",
			"ip6tables-nft -N last", "ip6tables-nft -A last -j LOG", "ip6tables-nft -A last -m comment --comment all -j DROP", "ip6tables-nft -A FORWARD -g last"},
			[]string{"nftables table ip filter, chain FORWARD", "nftables table ip6 filter, chain FORWARD"}, "iptables -I FORWARD -i bth+ -j ACCEPT && iptables -I FORWARD -o bth+ -j ACCEPT"},
		{"iptables-legacy, rule", []string{"iptables-legacy -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT", "iptables-legacy -A FORWARD -j REJECT --reject-with icmp-host-prohibited"},
			[]string{"iptables-legacy table filter, chain FORWARD"}, "by a rule of chain FORWARD, unless a rule before it accepts them; accept packets from and to links bth* before it: iptables-legacy -I FORWARD -i bth+ -j ACCEPT"},
		{"iptables-legacy, rule in a chain", []string{"iptables-legacy -N first", "iptables-legacy -A first -j LOG", "iptables-legacy -A FORWARD -j first", "iptables-legacy -A FORWARD",
			"iptables-legacy -N last", "iptables-legacy -A last -m comment --comment all ! -i lo -j DROP", "iptables-legacy -A FORWARD -g last"},
			[]string{"iptables-legacy table filter, chain FORWARD"}, "by a rule of chain last, "},
		{"ip6tables-legacy, policy after a return", []string{"ip6tables-legacy -A FORWARD -j RETURN", "ip6tables-legacy -A FORWARD -j ACCEPT", "ip6tables-legacy -P FORWARD DROP"},
			[]string{"ip6tables-legacy table filter, chain FORWARD"}, "ip6tables-legacy -P FORWARD ACCEPT"},

		// Rules that reject packets of others, or that are never reached.
		{"nft, rules about other packets", nftForward("ct state invalid drop", "iifname eth0 drop", "oifname { virbr0, docker0 } reject", "meta nfproto ipv4 tcp dport 25 reject", "ip saddr 192.0.2.0/24 drop",
			"limit rate 10/second drop", "iifname bth0 drop"), nil, ""},
		{"nft, after rules that accept pods", append(nftForward("iifname bth* accept", "oifname bth* jump zones", "reject"), "nft add rule inet f zones accept"), nil, ""},
		{"nft, after a rule that accepts everything", nftForward("jump zones", "accept", "drop"), nil, ""},
		{"nft, only sent packets accepted", nftForward("iifname bth* accept", "reject"), []string{"nftables table inet f, chain c"}, "nft insert rule"},
		{"nft and legacy iptables, rules about other packets", []string{"iptables-nft -A FORWARD -i eth0 -j DROP", "iptables-nft -A FORWARD -p tcp -j REJECT", "iptables-nft -A FORWARD -m mark --mark 1 -j DROP",
			"iptables-legacy -A FORWARD -o virbr0 -j REJECT", "iptables-legacy -A FORWARD -s 192.0.2.0/24 -j DROP", "iptables-legacy -A FORWARD -p udp -j DROP",
			"ip6tables-legacy -A FORWARD -m mark --mark 1 -j DROP", "ip6tables-legacy -A FORWARD ! -i bth+ ! -o bth+ -j DROP", "ip6tables-legacy -A FORWARD -d 2001:db8::/32 -j DROP"}, nil, ""},
		{"nft and legacy iptables, after rules that accept pods", []string{"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -i bth+ -j ACCEPT", "iptables-nft -A FORWARD -o bth+ -j ACCEPT",
			"iptables-legacy -A FORWARD -i bt+ -j ACCEPT", "iptables-legacy -A FORWARD -o bth+ -j ACCEPT", "iptables-legacy -A FORWARD -j REJECT"}, nil, ""},
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
				t.Fatalf("ForwardPolicy() found %q, want %q", where, c.where)
			}
			if len(found) > 0 && !strings.Contains(found[0].Message, c.fix) {
				t.Errorf("ForwardPolicy() found %+v, want the expected remedy", found[0])
			}
		})
	}
}

// nftForward makes a base chain c with rules, and an empty chain zones.
func nftForward(rules ...string) []string {
	commands := []string{"nft add table inet f", "nft add chain inet f zones", "nft add chain inet f c { type filter hook forward priority 0 ; }"}
	for _, r := range rules {
		commands = append(commands, "nft add rule inet f c "+r)
	}
	return commands
}

func TestForwardPolicyIgnoresBerthTable(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.config.BlockMetadata = true })
	if found, err := v.node.ForwardPolicy(ctx); err != nil || len(found) != 0 {
		t.Errorf("ForwardPolicy() = %v, %v, want no findings", found, err)
	}
	if names := v.host.run("cat /proc/net/ip_tables_names"); names != "" {
		t.Errorf("ForwardPolicy() loaded the tables %q", names)
	}
}

// The finding must be true, and its remedy must work.
func TestForwardPolicyRemedyWorks(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA), v.pod(podB)
	b.serveTCP(":80")
	for _, commands := range [][]string{
		{"iptables-legacy -P FORWARD DROP"},
		{"iptables-legacy -A FORWARD -j REJECT"},
		{"iptables-nft -A FORWARD -j REJECT"},
		nftForward("ct state established,related accept", "drop"),
	} {
		t.Run(commands[len(commands)-1], func(t *testing.T) {
			v, a := v.as(t), a.as(t)
			for _, c := range commands {
				v.host.run(c)
			}
			a.cannotReach("", podB+":80")
			found, err := v.node.ForwardPolicy(ctx)
			if err != nil || len(found) != 1 {
				t.Fatalf("ForwardPolicy() = %v, %v, want one finding", found, err)
			}
			_, fix, _ := strings.Cut(found[0].Message, ": ")
			for command := range strings.SplitSeq(fix, " && ") {
				v.host.run(command)
			}
			a.seenAs(podB+":80", podA)
			if found, err := v.node.ForwardPolicy(ctx); err != nil || len(found) != 0 {
				t.Errorf("ForwardPolicy() after the remedy = %v, %v, want no findings", found, err)
			}
		})
	}
}
