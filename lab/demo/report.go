package demo

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
)

// reporter prints the proofs and records their results.
type reporter struct {
	began   time.Time
	proofs  int                                   // number of proofs
	subtest func(name string, proof func() error) // see Options

	mu      sync.Mutex // guards all below
	out     io.Writer
	results []result
	omitted int // demos that did not run
}

type result struct {
	name string
	took time.Duration
	err  error
}

func newReporter(o Options, proofs int) *reporter {
	t := &reporter{out: o.Out, began: time.Now(), proofs: proofs, subtest: o.Subtest}
	if t.subtest == nil {
		t.subtest = func(_ string, proof func() error) { _ = proof() } // play handles its error
	}
	return t
}

func (t *reporter) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, format+"\n", args...)
}

// note prints one step of the lab's start.
func (t *reporter) note(s string) { t.say("  %s", s) }

func (t *reporter) quote(text string) {
	for line := range strings.Lines(text) {
		t.say("      %s", strings.TrimRight(line, "\n"))
	}
}

// notRun prints that a demo could not run, and why.
func (t *reporter) notRun(name string, why error) {
	t.mu.Lock()
	t.omitted++
	t.mu.Unlock()
	t.say("  - %-56s NOT RUN: %v", name, why)
}

// verdict prints one proof.
func (t *reporter) verdict(name, figures string, took time.Duration, err error) {
	t.mu.Lock()
	t.results = append(t.results, result{name, took, err})
	t.mu.Unlock()
	if err != nil {
		t.say("  ✗ %s (%.1f s)", name, took.Seconds())
		t.quote(err.Error())
		return
	}
	t.say("  ✓ %-56s %s", name, figures)
}

// summary prints the table and returns the failures.
func (t *reporter) summary() error {
	passed := 0
	var failed []error
	for _, r := range t.results {
		if r.err == nil {
			passed++
		} else {
			failed = append(failed, fmt.Errorf("%s: %w", r.name, errFailed))
		}
	}
	t.say("")
	t.say("  %-10s %d of %d", "proofs", passed, t.proofs)
	t.say("  %-10s %d", "failed", len(failed))
	if untried := t.proofs - len(t.results); untried > 0 {
		t.say("  %-10s %d", "not tried", untried)
	}
	if t.omitted > 0 {
		t.say("  %-10s %d", "NOT RUN", t.omitted)
	}
	t.say("  %-10s %.1f s", "time", time.Since(t.began).Seconds())
	t.say("")
	if len(failed) == 0 && passed < t.proofs {
		return errFailed
	}
	return errors.Join(failed...)
}

// next prints commands to try on a kept lab.
func (t *reporter) next(program string, l *lab.Lab) {
	s := lab.Status{Dir: l.Dir, Mode: l.Mode, Kubelets: l.Kubelets != nil, Families: l.IPFamilies, Nodes: []lab.NodeStatus{{Name: l.Nodes()[0].Name}}}
	if l.Kube != nil {
		s.Kubeconfig = l.Kube.Kubeconfig
	}
	t.say("The lab stays up. Next steps:")
	PrintNext(t.out, program, s)
}

// PrintNext prints commands to try on a lab that has a node.
func PrintNext(w io.Writer, program string, s lab.Status) {
	node := s.Nodes[0].Name
	at := func(verb, rest string) string {
		if s.Dir != lab.DefaultDir {
			verb += " --dir " + s.Dir
		}
		return strings.TrimSpace(program + " " + verb + " " + rest)
	}
	if s.Kubelets {
		printTable(w, clusterRows(at, s))
		return
	}
	pool := s.Mode == lab.PoolMode
	shown, kinds := "nodes, ENIs, addresses, pods, dropped packets", "nodenetworks"
	routes := [2]string{at("exec", node+" -- ip rule"), "policy routing"}
	port := s.Mode == lab.PortMode
	switch {
	case pool:
		shown, kinds = "pools, blocks, nodes, pods", "addresspools,addressblocks"
		routes = [2]string{at("exec", node+" -- ip route show table 119"), "what BIRD announces"}
	case port:
		shown, kinds = "VPCs, nodes, PodNICs with their ports, pods", "vpcs,podnics"
		routes = [2]string{at("pod add", node+" db --annotation 'berth.dev/nics=[{ip: 192.168.0.99}]'"), "a pod with a specific address"}
	}
	var rows [][2]string
	if s.Kubeconfig != "" {
		rows = append(rows, [][2]string{
			{"export KUBECONFIG=" + s.Kubeconfig, "then kubectl get " + kinds + ", if you have kubectl"},
			{at("kill", "operator-1"), "kill -9 an operator; start restarts it"},
			{at("kill", "kube-apiserver"), "the same for the API server"},
		}...)
	}
	rows = append(rows, [][2]string{
		{at("status", ""), shown},
		{at("pod add", node+" web"), "a pod, through CNI as a runtime would"},
		{at("exec", node+"/web -- ip addr"), "a command inside the pod, or inside a node"},
		{at("exec", node+" -- curl -s localhost:6666/ip-manager"), "what berthd knows"},
		routes,
	}...)
	if !pool && !port {
		rows = append(rows, [][2]string{
			{at("exec", node+"/web -- curl -s "+internetURL(s.Families)), "see which address the internet sees"},
			{at("calls", "--follow"), "EC2 calls with their parameters"},
			{at("fault", "throttle '*' 0.2"), "inject faults into EC2; see fault list, fault clear"},
		}...)
	}
	printTable(w, append(rows, [][2]string{
		{at("kill", node+" --restart"), "kill -9 berthd and start it again"},
		{at("down", ""), "remove everything"},
	}...))
}

// internetURL returns the URL at which the internet host returns the caller's address, quoted for a shell.
func internetURL(of ipfamily.Set) string {
	url := netip.AddrPortFrom(internetHosts[of.Families()[0]], echo.HTTPPort).String() + "/"
	if of == ipfamily.OnlyIPv6 {
		return "'http://" + url + "'" // the shell would interpret brackets as a pattern
	}
	return url
}

// clusterRows returns commands to try on a lab with kubelets.
func clusterRows(at func(verb, rest string) string, s lab.Status) [][2]string {
	node := s.Nodes[0].Name
	rows := [][2]string{
		{"export KUBECONFIG=" + s.Kubeconfig, "then kubectl, or the one beside kubelet in $KUBEBUILDER_ASSETS"},
		{"kubectl get nodes,pods -A -o wide", "the whole cluster"},
		{at("status", ""), "nodes, ENIs, addresses, pods, dropped packets"},
		{at("exec", node+" -- ctr -n k8s.io containers ls"), "a command on a node, with its files"},
		{at("exec", node+" -- curl -s localhost:6666/ip-manager"), "what berthd knows"},
		{at("kill", node), "power a node off; start boots it again"},
		{at("kill", "kube-apiserver"), "kill -9 the API server; start restarts it"},
		{at("down", ""), "remove everything"},
	}
	if s.Mode != lab.PoolMode && s.Mode != lab.PortMode {
		rows = slices.Insert(rows, len(rows)-1, [2]string{at("fault", "throttle '*' 0.2"), "inject faults into EC2; see fault list, fault clear"})
	}
	return rows
}

// after prints commands to try once the lab is removed.
func (t *reporter) after(program string) {
	t.say("The lab is removed. Next steps:")
	printTable(t.out, [][2]string{
		{program + " demo --keep", "the same, and keep the lab up"},
		{"make demo MODE=operator", "one operator calls EC2 for every node, instead of each node for itself"},
		{"make demo MODE=branches", "per-pod security groups, in a virtual machine"},
		{"make demo MODE=pool", "addresses from pools, announced by BGP, instead of a cloud's"},
		{"make demo MODE=port", "ports of OpenStack networks, created and bound for each pod"},
		{"make demo MODE=cluster", "a whole cluster: containerd, kubelet, kube-proxy on each node"},
		{program + " up --nodes 3", "your own lab; it prints the next steps"},
		{program + " help", "all commands"},
		{"docs/README.md", "how to install and configure Berth"},
	})
}

func printTable(w io.Writer, rows [][2]string) {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(table, "  %s\t%s\n", r[0], r[1])
	}
	_ = table.Flush() // output is best effort
}
