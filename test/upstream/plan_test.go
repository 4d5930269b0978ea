package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/run/host"
)

func TestSpecsAreChosenByGroup(t *testing.T) {
	all := []spec{
		{"[sig-network] Services should serve [Conformance]", []string{"sig-network", "Conformance"}},
		{"[sig-network] Services should hairpin", []string{"sig-network"}},
		{"[sig-network] LoadBalancers [Feature:LoadBalancer] should work", []string{"sig-network", "Feature:LoadBalancer"}},
		{"[sig-network] DNS should provide DNS for the cluster [Provider:gce]", []string{"sig-network"}},
		{"[sig-node] Pods should be submitted and removed [Conformance]", []string{"sig-node", "Conformance"}},
		{"[sig-node] Pods should start slowly", []string{"sig-node"}},
		{"[sig-node] Security Context should run as [Conformance]", []string{"sig-node", "Conformance"}},
		{"[sig-storage] Volumes should mount [Conformance]", []string{"sig-storage", "Conformance"}},
		{"[sig-network] [Feature:IPv6DualStack] should create pod", []string{"sig-network", "Feature:IPv6DualStack"}},
		{"[sig-network] LocalhostNodePorts should let a node pull", []string{"sig-network", "Feature:LocalhostNodePorts"}},
	}
	node, pool := network{families: ipfamily.OnlyIPv4, proxy: host.NFTables}, network{families: ipfamily.Dual, proxy: host.IPTables}
	everything := []string{"conformance", "network", "node"}
	if s := (spec{name: "[sig-network] Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]", labels: []string{"sig-network"}}); excluded(s, node) != "" || excluded(s, network{ports: true}) == "" {
		t.Error("what needs the pod's own node in the path is to be left out where it is not, and nowhere else")
	}
	for _, tc := range []struct {
		name         string
		choice       choice
		network      network
		run, exclude []string
	}{
		{"all groups", choice{groups: everything}, node, []string{all[0].name, all[1].name, all[4].name}, []string{all[2].name, all[3].name, all[8].name, all[9].name}},
		{"one group", choice{groups: []string{"network"}}, node, []string{all[1].name}, []string{all[2].name, all[3].name, all[8].name, all[9].name}},
		{"both families, iptables", choice{groups: []string{"network"}}, pool, []string{all[1].name, all[8].name, all[9].name}, []string{all[2].name, all[3].name}},
		{"focus", choice{groups: everything, focus: regexp.MustCompile("hairpin|LoadBalancers")}, node, []string{all[1].name}, []string{all[2].name}},
		{"skip", choice{groups: everything, skip: regexp.MustCompile("sig-network")}, node, []string{all[4].name}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := choose(all, tc.choice, tc.network)
			var run, exclude []string
			for _, s := range p.run {
				run = append(run, s.name)
			}
			for _, r := range p.exclude {
				exclude = append(exclude, r.Name)
				if r.Why == "" || r.Outcome != notApplicable {
					t.Errorf("%s is left out as %q, why: %q", r.Name, r.Outcome, r.Why)
				}
			}
			if d := cmp.Diff(tc.run, run); d != "" {
				t.Errorf("to run (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.exclude, exclude); d != "" {
				t.Errorf("left out (-want +got):\n%s", d)
			}
		})
	}
}

// The tags of a name change between releases of Kubernetes.
func TestShortSpecsAreFoundWithoutTheirTags(t *testing.T) {
	if !isShort(spec{name: "[sig-network] Services should be able to create a functioning NodePort service [Conformance] [New]"}) {
		t.Error("a further tag made another spec of it")
	}
	if isShort(spec{name: "[sig-network] Services should be able to create a functioning NodePort service on Windows"}) {
		t.Error("another spec was taken for it")
	}
}

func TestFocusHasExactlyTheSpecs(t *testing.T) {
	focus := regexp.MustCompile(focusOn([]spec{{name: "[sig-network] DNS (A.AAAA) [LinuxOnly]"}, {name: "[sig-network] NoSNAT"}}))
	for name, want := range map[string]bool{
		"Kubernetes e2e suite [sig-network] DNS (A.AAAA) [LinuxOnly]":  true,
		"Kubernetes e2e suite [sig-network] NoSNAT":                    true,
		"Kubernetes e2e suite [sig-network] NoSNAT at all":             false,
		"Kubernetes e2e suite [sig-network] DNS (AxAAAA) [LinuxOnly]":  false,
		"Kubernetes e2e suite not[sig-network] NoSNAT":                 false,
		"Kubernetes e2e suite [sig-network] DNS (A.AAAA) [LinuxOnly] ": false,
	} {
		if got := focus.MatchString(name); got != want {
			t.Errorf("%q: matches %t, expected %t", name, got, want)
		}
	}
}

// A cluster's pods have the families that are asked for, or those of its mode.
func TestPodFamilies(t *testing.T) {
	for _, tc := range []struct {
		mode, asked string
		want        ipfamily.Set
	}{
		{"node", "", ipfamily.OnlyIPv4},
		{"node", "ipv6", ipfamily.OnlyIPv6},
		{"operator", "", ipfamily.Dual},
		{"operator", "ipv4", ipfamily.OnlyIPv4},
		{"pool", "", ipfamily.Dual},
		{"port", "", ipfamily.OnlyIPv4},
	} {
		o, err := parse([]string{"-e2e=x", "-ginkgo=y", "-images=z", "-mode=" + tc.mode, "-ip-families=" + tc.asked}, &strings.Builder{})
		if err != nil || o.podFamilies() != tc.want || o.network().families != tc.want {
			t.Errorf("mode %s, asked for %q: %s, %v; want %s", tc.mode, tc.asked, o.podFamilies(), err, tc.want)
		}
	}
}
