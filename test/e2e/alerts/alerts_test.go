//go:build e2e

package alerts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth", "berth-operator")) }

// atNodeAddress makes daemons serve metrics to other machines.
const atNodeAddress = "--metrics-address=0.0.0.0:61678"

func nodeAddress(t *testing.T, l *lab.Lab, n *node.Node) netip.Addr {
	t.Helper()
	if l.Site != nil {
		return l.Site.Addrs(n.Name).IPv4
	}
	return harness.PrimaryAddress(t, l, n)
}

func named(t *testing.T, l *lab.Lab, name string) *node.Node {
	t.Helper()
	n, err := l.Node(name)
	harness.OK(t, err)
	return n
}

// meanwhile repeats do until the test ends or stop is called.
func meanwhile(t *testing.T, do func(ctx context.Context, i int)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			do(ctx, i)
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// pods adds more and more waiting pods to a node.
func pods(t *testing.T, n *node.Node) (stop func()) {
	t.Helper()
	return meanwhile(t, func(ctx context.Context, i int) {
		_, _ = n.AddPod(ctx, fmt.Sprintf("more-%d", i), node.PodOptions{Once: true}) // fails eventually
	})
}

// in runs a program in a node's network namespace.
func in(t *testing.T, n *node.Node, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + n.Netns}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// TestNodeAlertsFire causes each failure of nodes and of EC2 in node mode.
func TestNodeAlertsFire(t *testing.T) {
	t.Parallel()
	s := lab.DefaultSpec(6, "t3.small")
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{
		Spec:       &s,
		DaemonArgs: []string{atNodeAddress, "--warm-eni-target=0", "--warm-ip-target=1", "--minimum-ip-target=1", "--warm-wait=5s"},
	})
	p := watch(t, l, 60)
	p.quiet(t)

	t.Log("dead daemons, firewalls, interfering programs")
	for _, name := range []string{"node-1", "node-2"} {
		harness.OK(t, named(t, l, name).Kill())
	}
	for _, name := range []string{"node-3", "node-4"} {
		n := named(t, l, name)
		in(t, n, "nft", "add table ip strict; add chain ip strict forward { type filter hook forward priority 0; policy drop; }")
		b := harness.NewSandbox(t, n)
		b.NetNS = "/etc/hostname" // not a network namespace
		list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))
		meanwhile(t, func(ctx context.Context, _ int) { _, _ = b.CNI.AddNetworkList(ctx, list, b.RuntimeConf) })
	}
	meddled := named(t, l, "node-3")
	stopMeddling := meanwhile(t, func(ctx context.Context, _ int) {
		for _, priority := range []string{"512", "1024", "1025", "1536"} {
			_ = exec.CommandContext(ctx, "nsenter", "--net="+meddled.Netns, "ip", "rule", "del", "pref", priority).Run()
		}
	})
	damaged := named(t, l, "node-5")
	harness.Add(t, damaged, "damaged")
	harness.OK(t, damaged.Kill())
	records, err := filepath.Glob(filepath.Join(damaged.StateDir(), "attachments", "attachment-*.json"))
	harness.OK(t, err)
	for _, r := range records {
		harness.OK(t, os.WriteFile(r, []byte("{"), 0o600))
	}
	harness.OK(t, damaged.Start())
	harness.Ready(t, damaged)
	stopRestarts := meanwhile(t, func(context.Context, int) { // like a crashing container
		if err := damaged.Kill(); err == nil {
			_ = damaged.Start()
		}
		wait, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = damaged.WaitReady(wait)
		p.scraped(wait)
	})
	p.fires(t, "BerthDaemonDown", "BerthDaemonDownOnManyNodes", "BerthConditionFalse", "BerthConditionFalseOnManyNodes",
		"BerthADDsFail", "BerthADDsFailOnManyNodes", "BerthKernelStateChanged", "BerthRecordsQuarantined", "BerthProgramRestarts")
	stopMeddling()
	stopRestarts()
	harness.Ready(t, damaged)

	t.Log("EC2 refuses calls")
	for _, action := range []string{"AssignPrivateIpAddresses", "CreateNetworkInterface"} {
		l.Cloud.API.Deny(action)
	}
	for _, name := range []string{"node-4", "node-5", "node-6"} {
		pods(t, named(t, l, name))
	}
	p.fires(t, "BerthPodsWait", "BerthPodsWaitOnManyNodes", "BerthEC2Unauthorized")

	t.Log("full subnets")
	var undo []func()
	for _, action := range []string{"AssignPrivateIpAddresses", "CreateNetworkInterface"} {
		l.Cloud.API.Allow(action)
		remove, err := l.Cloud.API.Inject(spec.Fault{Action: action, Kind: "error", Code: "InsufficientFreeAddressesInSubnet"})
		harness.OK(t, err)
		undo = append(undo, remove)
	}
	p.fires(t, "BerthSubnetsExhausted")

	t.Log("EC2 unreachable")
	for _, remove := range undo {
		remove()
	}
	l.Cloud.API.Outage(true)
	p.fires(t, "BerthEC2Failing", "BerthReconcilesFail")
	l.Cloud.API.Outage(false)

	t.Log("no target")
	p.configure(t, map[string]targets{})
	harness.OK(t, syscall.Kill(p.PID(), syscall.SIGHUP))
	p.fires(t, "BerthMetricsAbsent")
}

// TestOperatorAlertsFire causes each failure of the operator and of EC2 in operator mode.
func TestOperatorAlertsFire(t *testing.T) {
	t.Parallel()
	s := lab.DefaultSpec(4, "t3.small")
	s.VPCs[0].Subnets[1].CIDR = netip.MustParsePrefix("10.0.4.0/28") // for node-2 and node-4
	l := harness.RaiseQuick(t, lab.OperatorMode, lab.Options{Spec: &s, OperatorCount: 2, DaemonArgs: []string{atNodeAddress}})
	p := watch(t, l, 30) // a report is retried after 15 s
	p.fires(t, "BerthSubnetNearlyFull", "BerthSubnetsExhausted")

	t.Log("EC2 refuses calls")
	l.Cloud.API.Deny("CreateNetworkInterface")
	free := int32(6) // more than one ENI holds
	for _, n := range l.Nodes() {
		harness.Edit(t, l, n.Name, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.PreAllocate = &free })
	}
	p.fires(t, "BerthManyNodesInDeficit", "BerthNodesInDeficit")

	t.Log("no operator")
	var leader *lab.Operator
	harness.Eventually(t, harness.Patience, "an operator leads", func() (err error) {
		if leader, err = l.Leader(t.Context()); err == nil && leader == nil {
			err = errors.New("none")
		}
		return err
	})
	for _, o := range l.Operators() {
		if o.Name != leader.Name {
			harness.OK(t, o.Kill())
		}
	}
	p.fires(t, "BerthOperatorDown")
	harness.OK(t, leader.Kill())
	p.fires(t, "BerthNoLeader")

	t.Log("no API server")
	harness.OK(t, l.Kube.KillAPIServer())
	for _, n := range l.Nodes() { // nodes report usage changes
		b, list := harness.NewSandbox(t, n), harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))
		meanwhile(t, func(ctx context.Context, _ int) {
			_, _ = b.CNI.AddNetworkList(ctx, list, b.RuntimeConf)
			_ = b.CNI.DelNetworkList(ctx, list, b.RuntimeConf)
		})
	}
	p.fires(t, "BerthNodeReportsFail")
}

// TestPoolAlertsFire causes each failure of address pools.
func TestPoolAlertsFire(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.PoolMode, lab.Options{
		// The Lease of a killed operator lasts this long.
		OperatorArgs: []string{"--lease-duration=15s", "--renew-deadline=10s"},
		Nodes:        2, DaemonArgs: []string{atNodeAddress, "--warm-wait=5s", "--block-claim-interval=1s"},
		Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 1, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/29"})}, // four blocks of two
	})
	p := watch(t, l, 60)
	p.quiet(t)

	t.Log("no operator")
	for _, o := range l.Operators() {
		harness.OK(t, o.Kill())
	}
	for _, n := range l.Nodes() {
		pods(t, n)
	}
	p.fires(t, "BerthNoLeader", "BerthOperatorDown", "BerthBlockRequestsPending", "BerthPodsWait", "BerthPodsWaitOnManyNodes")

	t.Log("pool too small")
	for _, o := range l.Operators() {
		harness.OK(t, o.Start())
	}
	p.fires(t, "BerthPoolExhausted", "BerthPoolNearlyExhausted")

	t.Log("node without a Node object")
	harness.OK(t, l.RemoveNodeObject(t.Context(), "node-1"))
	p.fires(t, "BerthNodeObjectMissing")
}

// elsewhere lists alerts that fire in no lab, only in scenarios of promtool (deploy/monitoring).
var elsewhere = map[string]string{
	"BerthVersionsDiffer":            "lasts six hours, minutes here, and needs two builds",
	"BerthADDsSlow":                  "needs 50 ADDs of more than 10 s, which are not scaled",
	"BerthLinksNotRemoved":           "needs a kernel that does not remove links",
	"BerthEC2Throttled":              "the limiter learns the rate within seconds, which are not scaled: only another client can cause a fifth of calls to be refused for half an hour",
	"BerthEC2CallsHeldBack":          "needs waits of 10 s, which are not scaled",
	"BerthSubnetRefusesAddresses":    "a full subnet is retried after a minute, which is not scaled",
	"BerthENIsNotRemoved":            "errors that need human intervention are retried after a minute, which is not scaled",
	"BerthENICreationsFail":          "the same",
	"BerthENIsLeftBehind":            "orphans are collected every ten minutes, which is not scaled",
	"BerthTwoLeaders":                "needs two installations",
	"BerthAddressesComeLate":         "needs waits of 30 s, which are not scaled",
	"BerthBlocksComeLate":            "needs waits of 10 s, which are not scaled",
	"BerthListingsStopped":           "needs a leading operator that hangs",
	"BerthBlockRequestsRefused":      "needs a node that requests blocks without pods, which berthd never does",
	"BerthVPCCallsFail":              "needs a reachable provider that fails more than half of the calls: backoff is not scaled",
	"BerthVPCThrottled":              "calls are held back for seconds, which are not scaled",
	"BerthNICsNotPlugged":            "needs another plugin, or an agent, that keeps NICs from being plugged",
	"BerthNICReportsFail":            "a report is retried after up to 15 s, which is not scaled",
	"BerthWebhookCertificateExpires": "a certificate lasts for 30 days",
	"BerthWebhookFails":              "needs an operator that the API server reaches but that cannot reach the API server",
	"BerthKubernetesCallsFail":       "requests are retried after up to 15 s, which is not scaled",

	// These labs have no Egress, because the machine's kernel may lack Foo-over-UDP.
	"BerthEgressWithoutGateways":       "needs an Egress",
	"BerthEgressGatewaysMissing":       "needs an Egress",
	"BerthEgressRefused":               "needs an Egress",
	"BerthEgressClientsNotServed":      "needs an Egress",
	"BerthEgressReportsFail":           "needs an Egress",
	"BerthEgressGatewaysSilent":        "needs an Egress",
	"BerthEgressServesLate":            "needs an Egress",
	"BerthEgressConnectionsFull":       "needs an Egress",
	"BerthEgressConnectionsNearlyFull": "needs an Egress",
	"BerthEgressGatewayFails":          "needs an Egress",

	// These labs enforce no network policies.
	"BerthNetworkPoliciesNotInForceOnManyNodes": "needs network policies",
	"BerthNetworkPoliciesNotInForce":            "needs network policies",
	"BerthNetworkPoliciesOutdatedOnManyNodes":   "needs network policies",
	"BerthNetworkPoliciesOutdated":              "needs network policies",
	"BerthNetworkPoliciesUnknown":               "needs network policies",
	"BerthNetworkPolicyUnresolved":              "needs network policies",
	"BerthNetworkPolicyTableChanged":            "needs network policies",
}

// TestEveryAlertFires checks that each alert is in one of the tests above or in the list.
func TestEveryAlertFires(t *testing.T) {
	read := func(path string) string {
		data, err := os.ReadFile(filepath.Join(harness.Tree(), path))
		harness.OK(t, err)
		return string(data)
	}
	rules := ""
	for _, path := range ruleFiles {
		rules += read(path)
	}
	body, _, _ := strings.Cut(read("test/e2e/alerts/alerts_test.go"), "var elsewhere")
	body += read("test/e2e/alerts/ports_test.go")
	alerts := regexp.MustCompile(`(?m)^ *- alert: (\w+)(?: #.*)?$`).FindAllStringSubmatch(rules, -1)
	if len(alerts) < 30 {
		t.Fatalf("found only %d alerts", len(alerts))
	}
	for _, m := range alerts {
		if here, there := strings.Contains(body, strconv.Quote(m[1])), elsewhere[m[1]] != ""; here == there {
			t.Errorf("%s: tested = %t, listed as untestable = %t, want exactly one", m[1], here, there)
		}
	}
}
