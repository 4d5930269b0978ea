package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/vpccni"
)

// migrationProofs are the proofs of a lab whose first node moves from the Amazon VPC CNI to Berth, and back.
var migrationProofs = []proof{
	in(inNode, "pods come up through the real Amazon VPC CNI, on several ENIs", formerPods),
	in(inNode, "the plan says what becomes of each pod, and changes nothing", migrationPlan),
	in(inNode, "the node moves to Berth under connections: no reply is lost", migrateThere),
	in(inNode, "pods come and go through Berth", migratedPods),
	in(inNode, "a second apply changes nothing", migrateTwice),
	in(inNode, "the node moves back under connections: no reply is lost", migrateBack),
	in(inNode, "pods come and go through the Amazon VPC CNI", formerPodsAgain),
	in(inNode, "the tool killed at each step: every pod is moved in the end", migrateKilled),
	in(inNode, "nothing of the Amazon VPC CNI is left", migrateFinish),
	in(inNode, "applied again, the Amazon VPC CNI does not start, or is reported", formerReturns),
}

// migrationLab turns the options of a lab into those for the migration demo. IAM permissions are another subject.
func migrationLab(o lab.Options) lab.Options {
	size := migrationSize(o)
	s := lab.DefaultSpec(o.Nodes, size.instanceType)
	s.Roles[0].Policy, s.Roles[0].Actions = "", []string{"*"}
	if o.BerthdEnv[customNetworking] != "" {
		addPodSubnet(&s)
		o.NodeNetworkTemplates = true
	}
	o.Spec, o.NoDaemons, o.InstanceType = &s, true, size.instanceType
	o.DaemonArgs = slices.Concat([]string{"--cni-network=" + vpccni.Network, "--adopt-enis=" + migrate.AmazonVPCCNI, "--cni-chain=", "--repair-interval=1s"}, o.DaemonArgs)
	return o
}

// migration is the lab of the migration demo: the first node moves, and the second one has Berth.
type migration struct {
	lab   *lab.Lab
	ipamd *vpccni.Daemon // of the first node
}

func (m *migration) node() *node.Node { return m.lab.Nodes()[0] }

// tool runs `berthctl migrate` on the node, as the cluster tool does in a pod. env has further variables.
func (m *migration) tool(ctx context.Context, into any, env []string, args ...string) error {
	n := m.node()
	args = slices.Concat([]string{"migrate", migrate.AmazonVPCCNI}, args, []string{
		"-o", "json", "--state-dir=" + n.StateDir(), "--cni-conf-dir=" + n.ConfDir(), "--cni-network=" + vpccni.Network,
		"--ipamd-dir=" + m.ipamd.RunDir(), "--cni-cache-dir=" + filepath.Join(n.Dir, "var", "lib", "cni"), "--netns-dir=" + ns.Dir,
	})
	return berthctl(ctx, into, m.lab.BinDir, n.Netns, env, args)
}

// berthctl runs a command of berthctl in a namespace, and reads its JSON output.
func berthctl(ctx context.Context, into any, programs, netns string, env, args []string) error {
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "berthctl"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = slices.Concat([]string{"PATH=" + os.Getenv("PATH")}, env), &out, &log
	if err := ns.Do(netns, cmd.Run); err != nil {
		return fmt.Errorf("berthctl %s: %w\n%s%s", strings.Join(args[:3], " "), err, &log, &out)
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("output of berthctl %s: %w\n%s", strings.Join(args[:3], " "), err, &out)
	}
	return nil
}

// report runs a step of the tool.
func (m *migration) report(ctx context.Context, args ...string) (r migrate.Report) {
	check(m.tool(ctx, &r, nil, args...))
	return r
}

// plan runs `berthctl migrate plan`.
func (m *migration) plan(ctx context.Context) (p migrate.Plan) {
	check(m.tool(ctx, &p, nil, "plan"))
	return p
}

// startFormer starts ipamd, and waits until it serves.
func (m *migration) startFormer(ctx context.Context) {
	defer m.keepMarkRule()()
	check(m.ipamd.Start())
	check(m.ipamd.Wait(ctx, func() error { return m.ipamd.Ready(ctx) }))
}

// verify checks that each address has one owner, and that the node's pods answer.
func (m *migration) verify(ctx context.Context, far netip.Addr) {
	if r := m.report(ctx, "verify"); len(r.Problems) > 0 {
		fail("problems: %s", strings.Join(r.Problems, "; "))
	}
	for _, p := range m.node().Pods() {
		_, err := p.Ask(ctx, "tcp", far, "hello")
		checkf(err, "pod %s", p.Name)
		_, err = m.node().Ask(ctx, "tcp", p.Addr(), "hello")
		checkf(err, "the node to pod %s", p.Name)
	}
}

func formerPods(ctx context.Context, s *stage) string {
	m := s.migration
	if m.has(customNetworking) {
		m.setCustomNetworking(ctx)
	}
	var chain []string
	if m.hostPorts() {
		chain = []string{"portmap"}
	}
	m.ipamd = must(lab.NewAmazonVPCCNI(s.lab, m.node(), chain...))
	m.startFormer(ctx)
	berth := s.nodes[1]
	check(errors.Join(berth.Start(), berth.WaitReady(ctx)))
	must(berth.AddPod(ctx, "far", node.PodOptions{}))
	for i := range s.pods {
		must(m.node().AddPod(ctx, fmt.Sprintf("old-%d", i), m.options()))
	}
	enis := map[string]bool{}
	for _, p := range m.plan(ctx).Pods {
		enis[p.Uplink] = true
	}
	m.onPodSubnet()
	if single := !m.has(prefixDelegation) && s.lab.PodFamilies() == ipfamily.OnlyIPv4; single && len(enis) < 2 {
		fail("all pods are on %d ENI, the proof needs two", len(enis))
	}
	return fmt.Sprintf("%d pods on %d ENIs", len(m.node().Pods()), len(enis))
}

func migrationPlan(ctx context.Context, s *stage) string {
	m := s.migration
	before := must(os.ReadFile(filepath.Join(m.ipamd.RunDir(), "ipam.json")))
	p := m.plan(ctx)
	if n := migrate.Count(p.Pods, migrate.Adopt); n != len(m.node().Pods()) || n != len(p.Pods) {
		fail("plan adopts %d of %d pods, expected %d: %+v", n, len(p.Pods), len(m.node().Pods()), p.Pods)
	}
	if !bytes.Equal(before, must(os.ReadFile(filepath.Join(m.ipamd.RunDir(), "ipam.json")))) {
		fail("the plan changed ipamd's checkpoint")
	}
	var r migrate.Report
	if err := m.tool(ctx, &r, nil, "apply"); err == nil || !strings.Contains(err.Error(), "ipamd answers") {
		fail("apply while ipamd runs: %v, expected a refusal", err)
	}
	return fmt.Sprintf("%d pods to adopt; apply is refused while ipamd runs", len(p.Pods))
}

// uidsKnown checks that the records of adopted pods have their UIDs, without which network policies do not apply.
func (m *migration) uidsKnown() {
	records, _, err := attachment.Peek(filepath.Join(m.node().StateDir(), "attachments"), m.node().InstanceID)
	check(err)
	for _, r := range records {
		if p := must(m.node().Pod(strings.TrimSuffix(r.Pod.Name, "-"+m.node().Name))); r.Pod.UID != p.UID {
			fail("the record of %s has UID %q, expected %q", r.Pod.Name, r.Pod.UID, p.UID)
		}
	}
}

// far is the pod on the other node.
func (s *stage) far() netip.Addr { return must(s.nodes[1].Pod("far")).Addr() }

// moving starts conversations of all pods of the node, moves it, and returns the figures of the traffic.
func (m *migration) moving(ctx context.Context, s *stage, move func(*traffic) string) string {
	figures, t := underTraffic(ctx, func(ctx context.Context, t *traffic) string {
		outside := s.internet()
		if m.has(externalSNAT) { // nothing translates the pods' addresses for it
			outside = netip.Addr{}
		}
		t.fromPods(ctx, m.node(), outside, s.far())
		m.throughHostPorts(ctx, s, t)
		for _, p := range m.node().Pods() {
			t.converse(ctx, s.nodes[1].Netns, "tcp", p.Addr()) // as a kubelet's probe, from another machine
			t.converse(ctx, m.node().Netns, "tcp", p.Addr())
		}
		t.flow(ctx)
		figures := move(t)
		checkf(attempt(func() { t.flow(ctx) }), "after the move")
		return figures
	})
	return fmt.Sprintf("%d replies in %d conversations, 0 lost, slowest %s; %s", t.answered.Load(), t.talks, ms(t.worst), figures)
}

func migrateThere(ctx context.Context, s *stage) string {
	m := s.migration
	return m.moving(ctx, s, func(t *traffic) string {
		check(m.ipamd.Kill())
		began := time.Now()
		r := m.report(ctx, "apply")
		took := time.Since(began)
		m.uidsKnown()
		checkf(attempt(func() { t.flow(ctx) }), "after apply, before berthd starts")
		check(errors.Join(m.node().Start(), m.node().WaitReady(ctx)))
		checkf(attempt(func() { t.flow(ctx) }), "after berthd started")
		m.verify(ctx, s.far())
		m.sole(ctx, "")
		return fmt.Sprintf("%d pods adopted in %s", migrate.Count(r.Pods, migrate.Adopted), ms(took))
	})
}

func migratedPods(ctx context.Context, s *stage) string {
	m := s.migration
	for i := range 2 {
		must(m.node().AddPod(ctx, fmt.Sprintf("new-%d", i), m.options()))
	}
	m.onPodSubnet()
	m.delPod(ctx, "old-0")
	m.verify(ctx, s.far())
	await(ctx, "ENIs with the tags of both systems", m.tagged)
	r := m.report(ctx, "verify")
	return fmt.Sprintf("%d adopted, %d created by Berth", migrate.Count(r.Pods, migrate.Adopted), migrate.Count(r.Pods, migrate.Berth))
}

// tagged checks that the secondary ENIs of the node have the tags of Berth, and keep those of their creator.
func (m *migration) tagged() {
	for _, e := range m.lab.Snapshot().InstanceENIs(m.node().InstanceID) {
		if e.Attachment.DeviceIndex > 0 && (e.Tags[eni.TagCluster] != m.node().Cluster || e.Tags[eni.TagInstanceID] != m.node().InstanceID) {
			fail("%s lacks tags of Berth: %v", e.ID, e.Tags)
		}
		if strings.HasPrefix(e.Description, "aws-K8S-") && e.Tags["node.k8s.amazonaws.com/instance_id"] == "" {
			fail("%s lost the tags of its creator: %v", e.ID, e.Tags)
		}
	}
}

func migrateTwice(ctx context.Context, s *stage) string {
	m := s.migration
	var r migrate.Report
	if err := m.tool(ctx, &r, nil, "apply"); err == nil || !strings.Contains(err.Error(), "berthd") {
		fail("apply while berthd runs: %v, expected a refusal", err)
	}
	check(m.node().Kill())
	if r = m.report(ctx, "apply"); len(r.Changed) > 0 {
		fail("a second apply changed: %s", strings.Join(r.Changed, "; "))
	}
	check(errors.Join(m.node().Start(), m.node().WaitReady(ctx)))
	m.verify(ctx, s.far())
	return "also refused while berthd runs"
}

func migrateBack(ctx context.Context, s *stage) string {
	m := s.migration
	return m.moving(ctx, s, func(t *traffic) string {
		check(m.node().Kill())
		r := m.report(ctx, "rollback")
		checkf(attempt(func() { t.flow(ctx) }), "after the rollback, before ipamd starts")
		m.startFormer(ctx)
		checkf(attempt(func() { t.flow(ctx) }), "after ipamd started")
		if n := migrate.Count(m.plan(ctx).Pods, migrate.Adopt); n != len(m.node().Pods()) {
			fail("ipamd has %d of %d pods after the rollback", n, len(m.node().Pods()))
		}
		return fmt.Sprintf("%d changes", len(r.Changed))
	})
}

func formerPodsAgain(ctx context.Context, s *stage) string {
	m := s.migration
	m.delPod(ctx, "old-1") // adopted
	m.delPod(ctx, "new-0") // Berth's
	must(m.node().AddPod(ctx, "old-again", m.options()))
	m.onPodSubnet()
	m.verify(ctx, s.far())
	return fmt.Sprintf("%d pods", len(m.node().Pods()))
}

// toolFailpoints are the steps at which the tool is killed.
var toolFailpoints = map[string][]string{
	"apply": {
		"migrate.checkpoint.after", "migrate.hold.after", "migrate.conflist.after", "migrate.setup.after", "adopt.record.after", "adopt.link.after@2",
		"adopt.rules.after@2", "adopt.routes.after@3", "migrate.adopted.after",
	},
	"rollback": {
		"rollback.staged.after", "rollback.tables.after", "giveback.record.after", "giveback.routes.after@2", "giveback.rules.after",
		"giveback.rename.after", "giveback.clean.after@2", "rollback.returned.after", "rollback.cleared.after", "rollback.conflist.after", "rollback.uninstall.after",
	},
}

// killed runs a step of the tool that is killed at each failpoint, and then to its end.
func (m *migration) killed(ctx context.Context, step string) {
	for _, point := range toolFailpoints[step] {
		name, at, _ := strings.Cut(point, "@")
		spec := name + "=kill"
		if at != "" {
			spec += "@" + at
		}
		var r migrate.Report
		err := m.tool(ctx, &r, []string{"BERTH_FAILPOINTS=" + spec}, step)
		if err == nil || !strings.Contains(err.Error(), "killed") {
			fail("%s at %s: %v, expected that the tool is killed", step, point, err)
		}
	}
	m.report(ctx, step)
}

func migrateKilled(ctx context.Context, s *stage) string {
	m := s.migration
	return m.moving(ctx, s, func(t *traffic) string {
		check(m.ipamd.Kill())
		m.killed(ctx, "apply")
		m.killed(ctx, "rollback")
		m.startFormer(ctx)
		m.verify(ctx, s.far())
		check(m.ipamd.Kill())
		m.killed(ctx, "apply")
		check(errors.Join(m.node().Start(), m.node().WaitReady(ctx)))
		m.verify(ctx, s.far())
		return fmt.Sprintf("%d kills", 2*len(toolFailpoints["apply"])+len(toolFailpoints["rollback"]))
	})
}

func migrateFinish(ctx context.Context, s *stage) string {
	m := s.migration
	return m.moving(ctx, s, func(t *traffic) string {
		legacy := m.formerRules(ctx)
		if m.has(programPath) != (len(legacy) > 0) {
			fail("rules of the Amazon VPC CNI in iptables-legacy: %q", legacy)
		}
		r := m.report(ctx, "apply", "--finish")
		if again := m.report(ctx, "apply", "--finish"); len(again.Changed) > 0 {
			fail("a second finish changed: %s", strings.Join(again.Changed, "; "))
		}
		m.verify(ctx, s.far())
		check(m.formerLeft(ctx))
		return fmt.Sprintf("%d objects removed", len(r.Changed))
	})
}

// formerLeft returns an error that names what the Amazon VPC CNI left on the node. Berth's rules and routes have its
// protocol number, and the kernel's own have other ones.
func (m *migration) formerLeft(ctx context.Context) error {
	left := m.formerRules(ctx)
	err := ns.Do(m.node().Netns, func() error {
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Protocol != datapath.Protocol && r.Protocol != unix.RTPROT_KERNEL {
				left = append(left, r.String())
			}
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			host := r.Dst != nil && r.Table == unix.RT_TABLE_MAIN && slices.ContainsFunc(m.node().Pods(), func(p *node.Pod) bool { return r.Dst.IP.Equal(p.Addr().AsSlice()) })
			if host || r.Table > 0 && r.Table < 100 {
				left = append(left, r.String())
			}
		}
		chains, err := formerChains()
		left = append(left, chains...)
		return err
	})
	for _, pattern := range []string{filepath.Join(m.ipamd.RunDir(), "*"), m.ipamd.Configuration() + "*"} {
		files, _ := filepath.Glob(pattern)
		left = append(left, slices.DeleteFunc(files, func(f string) bool { return f == m.fence() })...)
	}
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("the Amazon VPC CNI left: %s", strings.Join(left, "; "))
	}
	return err
}

// formerChains returns the chains of the Amazon VPC CNI in the calling thread's namespace.
func formerChains() (left []string, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(c.Name, "CNI-") {
			continue // of portmap
		}
		rules = slices.DeleteFunc(rules, leadsToPortmap)
		// Nothing else makes rules in these tables here.
		if strings.HasPrefix(c.Name, "AWS") || c.Table.Name == "aws-cni" || slices.Contains([]string{"nat", "mangle"}, c.Table.Name) && len(rules) > 0 {
			left = append(left, fmt.Sprintf("chain %s of table %s with %d rules", c.Name, c.Table.Name, len(rules)))
		}
	}
	return left, nil
}

// leadsToPortmap reports whether a rule calls a chain of the portmap plugin.
func leadsToPortmap(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		v, ok := e.(*expr.Verdict)
		return ok && strings.HasPrefix(v.Chain, "CNI-")
	})
}
