package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/usage"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// The number of pods on the full node of thousandPods, and on the other one.
const fullPods, fewPods = 1000, 10

// raisePrefixes starts a lab in node mode with two nodes whose ENIs have prefixes.
func (b *testbed) raisePrefixes(ctx context.Context) {
	say("starting a lab with two %s nodes with prefixes", nodeType)
	b.start(ctx, lab.Options{Spec: roomy(2), NoDaemons: true, DaemonArgs: []string{
		"--cooling-period=1s", "--enable-prefix-delegation", "--warm-prefix-target=1", fmt.Sprintf("--minimum-ip-target=%d", fullPods+200), "--repair-interval=1h",
	}})
	nodes := b.lab.Nodes()
	b.few, b.many = nodes[0], nodes[1]
	for _, n := range nodes {
		must.OK(n.Start())
	}
	for _, n := range nodes {
		must.OK(n.WaitReady(ctx))
		waitWarm(ctx, n, fullPods+200)
	}
}

// thousandPods compares a node with 1,000 pods with one with 10: an ADD, a DEL, a CHECK, a scrape of the metrics, the
// document that kubectl berth reads, and the daemon's CPU time of a repair. Scrapes and repairs read all pods: their
// figures are per pod, with that of 100 pods as reference.
func thousandPods(ctx context.Context, b *bench) []Result {
	bed := b.bed
	few, many := dial(bed.few), dial(bed.many)
	defer few.conn.Close()
	defer many.conn.Close()
	fewOnes := bed.fillKeys(ctx, few, fewPods)
	manyOnes := bed.fillKeys(ctx, many, 100)
	whole := series{}
	wholeNode(ctx, bed.many, whole, "of few ", 100, b.options.rounds/4)
	manyOnes = append(manyOnes, bed.fillKeys(ctx, many, fullPods-len(manyOnes))...)
	wholeNode(ctx, bed.many, whole, "", fullPods, b.options.rounds/4)
	s := rounds(b.options.rounds, func(i int, note note) {
		for _, of := range []struct {
			c     *client
			whose string
			ones  []*rpc.CheckRequest
		}{{many, "", manyOnes}, {few, "of few ", fewOnes}} {
			rt := bed.sandboxes.sandbox()
			add, del := &rpc.AddRequest{Attachment: key(rt), Netns: rt.NetNS}, &rpc.DelRequest{Attachment: key(rt), Netns: rt.NetNS}
			note(of.whose+"add", clocked(func() { must.Get(of.c.rpc.Add(ctx, add)) }))
			note(of.whose+"del", clocked(func() { must.Get(of.c.rpc.Del(ctx, del)) }))
			note(of.whose+"check", clocked(func() { must.Get(of.c.rpc.Check(ctx, of.ones[i%len(of.ones)])) }))
		}
	})
	return []Result{
		s.ratio("add-1000-pods", "ms", "add", "of few add"), s.ratio("del-1000-pods", "ms", "del", "of few del"), s.ratio("check-1000-pods", "ms", "check", "of few check"),
		whole.ratio("scrape-1000-pods", "us/pod", "scrape", "of few scrape"), whole.ratio("document-1000-pods", "us/pod", "document", "of few document"),
		whole.ratio("repair-1000-pods", "us/pod", "repair", "of few repair"),
		single("daemon-1000-pods", "MiB", memoryOf(bed.many), 0),
	}
}

// clocked returns the duration of a call in ms.
func clocked(call func()) float64 {
	start := time.Now()
	call()
	return millis(time.Since(start))
}

// fillKeys adds n pods that are not deleted, and returns a CHECK of each.
func (b *testbed) fillKeys(ctx context.Context, c *client, n int) []*rpc.CheckRequest {
	all, checks := b.sandboxes.sandboxes(n), make([]*rpc.CheckRequest, n)
	eachOf(ctx, n, 4, func(ctx context.Context, i int) {
		must.Get(c.rpc.Add(ctx, &rpc.AddRequest{Attachment: key(all[i]), Netns: all[i].NetNS}))
		checks[i] = &rpc.CheckRequest{Attachment: key(all[i]), Netns: all[i].NetNS}
	})
	return checks
}

// wholeNode measures what reads all pods of a node, per pod. A route of PodTable that leads nowhere makes the daemon repair.
func wholeNode(ctx context.Context, n *node.Node, s series, whose string, pods, times int) {
	host := netlinkIn(n.Netns)
	defer host.Close()
	each := func(ms float64) float64 { return ms * 1000 / float64(pods) }
	for range max(times, 3) {
		s.add(whose+"scrape", each(clocked(func() { must.Get(n.Get(ctx, node.MetricsURL)) })))
		s.add(whose+"document", each(clocked(func() { must.Get(n.Get(ctx, node.IntrospectionURL)) })))
		must.Get(usage.Settled(ctx, n.PID()))
		before := must.Get(usage.OnCPU(n.PID()))
		removeRule(host)
		must.Get(usage.Settled(ctx, n.PID()))
		s.add(whose+"repair", each(millis(must.Get(usage.OnCPU(n.PID()))-before)))
	}
}

// removeRule removes the policy rule of the pods' routing table, which the daemon restores.
func removeRule(host *netlink.Handle) {
	rules := must.Get(host.RuleList(netlink.FAMILY_V4))
	for i := range rules {
		if rules[i].Table == datapath.PodTable {
			must.OK(host.RuleDel(&rules[i]))
			return
		}
	}
	must.OK(fmt.Errorf("no rule of table %d", datapath.PodTable))
}
