package demo

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/lab"
)

// teller prints the story and remembers how it went.
type teller struct {
	began  time.Time
	proofs int // how many there are

	mu      sync.Mutex // guards all below
	out     io.Writer
	results []result
}

type result struct {
	name string
	took time.Duration
	err  error
}

func (t *teller) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, format+"\n", args...)
}

// note is one step of raising the lab.
func (t *teller) note(s string) { t.say("  %s", s) }

func (t *teller) quote(text string) {
	for line := range strings.Lines(text) {
		t.say("      %s", strings.TrimRight(line, "\n"))
	}
}

// verdict prints one proof.
func (t *teller) verdict(name, figures string, took time.Duration, err error) {
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

// summary prints the table and returns what failed, nil when all passed.
func (t *teller) summary() error {
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
	t.say("  %-10s %.1f s", "time", time.Since(t.began).Seconds())
	t.say("")
	if len(failed) == 0 && passed < t.proofs {
		return errFailed
	}
	return errors.Join(failed...)
}

// next says what to do with a lab that stays up.
func (t *teller) next(program string, l *lab.Lab) {
	t.say("The lab stays up. Where to go next:")
	node := l.Nodes()[0].Name
	at := func(verb, rest string) string {
		return strings.TrimSpace(program + " " + verb + " --dir " + l.Dir + " " + rest)
	}
	if l.Kube != nil {
		t.table([][2]string{
			{"export KUBECONFIG=" + l.Kube.Kubeconfig, "for kubectl, if you have it: kubectl get nodenetworks"},
			{at("kill", "operator-1"), "kill -9 an operator; start brings it back"},
			{at("kill", "kube-apiserver"), "the same for the API server"},
		})
	}
	if l.Mode == lab.PoolMode {
		t.table([][2]string{
			{at("status", ""), "pools, blocks, nodes, pods"},
			{at("exec", node+" -- curl -s localhost:6666/ip-manager"), "what berthd knows"},
			{at("exec", node+" -- ip route show table 119"), "what BIRD announces"},
			{at("pod add", node+" mine"), "another pod"},
			{at("kill", node+" --restart"), "kill -9 berthd and start it again"},
			{at("down", ""), "remove everything"},
		})
		return
	}
	t.table([][2]string{
		{at("status", ""), "nodes, ENIs, pods, dropped packets"},
		{at("exec", node+" -- curl -s localhost:6666/ip-manager"), "what berthd knows"},
		{at("exec", node+" -- ip rule"), "policy routing"},
		{at("pod add", node+" mine"), "another pod"},
		{at("exec", node+"/mine -- curl -s "+internet.String()+":8080/"), "ask the internet who you are"},
		{at("fault", "throttle '*' 0.2"), "make EC2 misbehave; fault list, fault clear"},
		{at("kill", node+" --restart"), "kill -9 berthd and start it again"},
		{at("down", ""), "remove everything"},
	})
}

// after says what to do when the lab is gone again.
func (t *teller) after(program string) {
	t.say("The lab is removed. Where to go next:")
	t.table([][2]string{
		{program + " demo --keep", "the same, and leave the lab up to look around"},
		{program + " demo --mode operator", "one operator calls EC2 for every node; --mode node: each its own"},
		{program + " demo --mode pool", "addresses from pools, announced by BGP, in place of a cloud's"},
		{program + " up --nodes 3", "a lab of your own; it says how to go on"},
		{program + " help", "what else there is"},
		{"docs/README.md", "how to install and configure Berth"},
	})
}

func (t *teller) table(rows [][2]string) {
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0]))
	}
	for _, r := range rows {
		t.say("  %-*s  %s", width, r[0], r[1])
	}
}
