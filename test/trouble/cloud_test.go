package trouble

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestCloudAwayAtStart takes EC2, then the metadata service, away from a
// daemon that starts: the first time it waits and heals by itself, later it
// serves from what was confirmed before.
func TestCloudAwayAtStart(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: quick(), NoDaemons: true})
	n := l.Nodes()[0]
	harness.OK(t, installPlugin(n))
	s := harness.NewSandbox(t, n)
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))

	l.Cloud.IMDSOutage(true)
	l.Cloud.Outage(true)
	harness.OK(t, n.Start())
	harness.Eventually(t, patience, "the daemon says what it waits for", func() error {
		body, err := n.Get(t.Context(), "http://127.0.0.1:61678/readyz")
		if err == nil || !strings.Contains(body+err.Error(), "metadata service") {
			return fmt.Errorf("readyz: %q, %w", body, err)
		}
		return nil
	})
	_, err := s.CNI.AddNetworkList(within(t, patience), list, s.RuntimeConf)
	fails(t, err, types.ErrTryAgainLater, "starting", "metadata service")
	statusFails(t, s, list, "metadata service")

	l.Cloud.IMDSOutage(false)
	harness.Eventually(t, patience, "the daemon reports that EC2 is away", func() error {
		doc, err := lab.Document(t.Context(), n)
		if err == nil && doc.LastError == "" {
			err = errors.New("no last error")
		}
		return err
	})
	_, err = s.CNI.AddNetworkList(within(t, patience), list, s.RuntimeConf)
	fails(t, err, types.ErrTryAgainLater, "EC2")
	statusFails(t, s, list, "no address was usable", "EC2")
	harness.OK(t, s.CNI.DelNetworkList(within(t, patience), list, s.RuntimeConf))

	l.Cloud.Outage(false)
	ready(t, n)
	add(t, n, "first")
	harness.Settle(t, l)
	content(t, n)

	brief := add(t, n, "brief").Addr()
	remove(t, n, "brief")
	harness.Eventually(t, patience, "its address has cooled", func() error {
		if doc := document(t, n); len(doc.Cooling) > 0 {
			return fmt.Errorf("%+v cool", doc.Cooling)
		}
		return nil
	})
	l.Cloud.Outage(true)
	l.Cloud.IMDSOutage(true)
	restart(t, n)
	// Warm since before; the cloud gets a moment to say otherwise.
	if second := add(t, n, "second").Addr(); second == brief {
		t.Errorf("%s was given out first, which a pod had last before the restart", second)
	}
	harness.OK(t, n.CheckPod(t.Context(), "first"))
	l.Cloud.Outage(false)
	l.Cloud.IMDSOutage(false)
	removeAll(t, n)
	harness.Settle(t, l)
}

// statusFails wants a STATUS that fails and says all of words, if not at once: the
// plugin waits five seconds for a daemon, which may be late, or starting still.
func statusFails(t *testing.T, s *harness.Sandbox, list *libcni.NetworkConfigList, words ...string) {
	t.Helper()
	var err error
	harness.Eventually(t, patience, "STATUS says why the node takes no pods", func() error {
		err = s.CNI.GetStatusNetworkList(within(t, patience), list)
		if err == nil || node.CNICode(err) != types.ErrPluginNotAvailable || says(err.Error(), words) {
			return nil
		}
		return fmt.Errorf("want words %q: %w", words, err)
	})
	fails(t, err, types.ErrPluginNotAvailable, words...)
}

// content waits until the daemon tells of no error any more.
func content(t *testing.T, n *node.Node) {
	t.Helper()
	harness.Eventually(t, patience, "the last error goes after it healed", func() error {
		doc, err := lab.Document(t.Context(), n)
		if err == nil && doc.LastError != "" {
			err = errors.New(doc.LastError)
		}
		return err
	})
}

// TestStaleCloudAtRestart takes addresses off a node while its daemon is down,
// and has metadata and describe calls lag: no pod gets what EC2 has taken, even
// if it gave it a moment before.
func TestStaleCloudAtRestart(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: quick("--cooling-period=0s")})
	n := l.Nodes()[0]
	keep := add(t, n, "keep")
	harness.Settle(t, l)
	l.Cloud.SetIMDSDelay(time.Hour) // the metadata knows nothing of what follows
	for round, tries := 0, 0; round < 2; tries++ {
		if tries == 20 {
			t.Fatal("EC2 never answered within the seconds that a daemon leaves it")
		}
		harness.OK(t, n.Kill())
		before := log(t, n)
		taken := takeAllBut(t, l, n, keep.Addr())
		// EC2's answers are late; pods are not.
		l.Cloud.SetLatency("Describe*", 500*time.Millisecond)
		harness.OK(t, n.Start())
		var lost []netip.Addr
		for i := range 2 {
			p := add(t, n, fmt.Sprintf("p%d", i))
			if !slices.ContainsFunc(enis(l, n), func(e vpc.ENI) bool { return e.Owns(p.Addr()) }) {
				lost = append(lost, p.Addr())
			}
		}
		l.Cloud.SetLatency("Describe*", 0)
		// Where the machine stood still for longer than that, the daemon takes EC2
		// for away, and there is nothing to be seen.
		tooLate := strings.Contains(strings.TrimPrefix(log(t, n), before), "by the stored inventory")
		if !tooLate {
			round++
			if len(lost) > 0 {
				t.Errorf("pods have %v, of %v that EC2 took while the daemon was down", lost, taken)
			}
			harness.Settle(t, l)
		}
		remove(t, n, "p0")
		remove(t, n, "p1")
		harness.Settle(t, l)
	}
}

// log is all that the daemon has logged.
func log(t *testing.T, n *node.Node) string {
	t.Helper()
	data, err := os.ReadFile(n.LogFile())
	harness.OK(t, err)
	return string(data)
}

// takeAllBut unassigns every address of a node but one, behind its back.
func takeAllBut(t *testing.T, l *lab.Lab, n *node.Node, keep netip.Addr) (taken []netip.Addr) {
	t.Helper()
	for _, e := range enis(l, n) {
		gone := slices.DeleteFunc(slices.Clone(e.Secondary), func(a netip.Addr) bool { return a == keep })
		harness.OK(t, l.Cloud.Unassign(e.ID, vpc.Assigned{IPv4: gone}))
		taken = append(taken, gone...)
	}
	if len(taken) == 0 {
		t.Fatal("the node has no warm address to take")
	}
	return taken
}

// TestPermissionDenied takes one EC2 action each from three nodes that need it
// next, and gives it back. Errors that only a person can heal are tried again
// once in a minute or so, and none of it leaves anything behind.
func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	s := lab.DefaultSpec(3, "t3.small")
	denied := []string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface"}
	all := []string{
		"ec2:Describe*", "ec2:CreateTags", "ec2:DeleteNetworkInterface", "ec2:DetachNetworkInterface",
		"ec2:ModifyNetworkInterfaceAttribute", "ec2:UnassignPrivateIpAddresses",
	}
	s.Roles = nil
	for i, action := range denied {
		s.Roles = append(s.Roles, spec.Role{Name: action, Actions: []string{"*"}})
		s.Instances[i].Role = action
	}
	l := harness.Raise(t, lab.Options{Spec: &s, DaemonArgs: append(quick("--warm-eni-target=0"), "--warm-ip-target=0", "--minimum-ip-target=1")})
	// The first node has room on its primary ENI, the others have filled it.
	for i, n := range l.Nodes() {
		for k := range []int{1, 3, 3}[i] {
			add(t, n, fmt.Sprintf("p%d", k))
		}
	}
	harness.Settle(t, l)
	for _, n := range l.Nodes() { // nor does a spare address, of an ADD that was tried again, hide what is denied
		harness.Eventually(t, patience, "no address is spare on "+n.Name, func() error {
			doc, err := lab.Document(t.Context(), n)
			if spare := doc.Totals.Available + doc.Totals.Cooling; err == nil && spare > 0 {
				err = fmt.Errorf("%d are", spare)
			}
			return err
		})
	}
	for _, action := range denied {
		others := slices.DeleteFunc(slices.Clone(denied), func(a string) bool { return a == action })
		l.Cloud.SetRoleActions(action, append(slices.Clone(all), others...))
	}
	for i, n := range l.Nodes() {
		t.Run(denied[i], func(t *testing.T) {
			full(t, n, "denied", denied[i], "UnauthorizedOperation", "allow the action")
			harness.Eventually(t, patience, "the last error tells, and nobody waits", func() error {
				doc, err := lab.Document(t.Context(), n)
				if err == nil && (!strings.Contains(doc.LastError, denied[i]) || doc.Totals.Waiting > 0) {
					err = fmt.Errorf("the last error is %q, %d wait still", doc.LastError, doc.Totals.Waiting)
				}
				return err
			})
			takesPods(t, n) // running pods are no reason to be evicted
		})
	}
	for _, action := range denied {
		l.Cloud.SetRoleActions(action, []string{"*"})
	}
	ctx := within(t, 10*time.Minute)
	for i, n := range l.Nodes() {
		t.Run(denied[i]+" allowed", func(t *testing.T) {
			_, err := n.AddPod(ctx, "allowed", nodeOptions)
			harness.OK(t, err)
			if n.Starts() != 1 {
				t.Errorf("the daemon was started %d times", n.Starts())
			}
			if want, got := min(i+1, 2), len(enis(l, n)); got != want {
				t.Errorf("%d ENIs, want %d", got, want)
			}
		})
	}
	harness.Settle(t, l)
	for _, n := range l.Nodes() {
		content(t, n)
	}
}

// TestFull fills what has an end: the subnet, the instance's ENIs and
// max-pods. Each says so, and goes on when there is room again.
func TestFull(t *testing.T) {
	t.Parallel()
	s := lab.DefaultSpec(1, "t3.small")
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/28")})
	s.Instances = append(s.Instances,
		spec.Instance{Name: "tiny", Type: "t3.small", Subnet: "tiny", Role: s.Instances[0].Role},
		spec.Instance{Name: "capped", Type: "t3.small", Subnet: "a", Role: s.Instances[0].Role})
	l := harness.Raise(t, lab.Options{Spec: &s, DaemonArgs: quick(lean...), NoDaemons: true})
	for _, n := range l.Nodes() {
		var more []string
		if n.Name == "capped" {
			more = []string{"--max-pods=4"}
		}
		harness.OK(t, n.Start(more...))
		ready(t, n)
	}
	t.Run("subnet", func(t *testing.T) {
		n, err := l.Node("tiny")
		harness.OK(t, err)
		sn, _ := l.Books().Subnet("tiny")
		other, err := l.Cloud.CreateNetworkInterface(vpc.CreateRequest{SubnetID: sn.ID, Addresses: vpc.AddressRequest{IPv4Count: sn.Free - 3}})
		harness.OK(t, err)
		for i := range 2 { // one was warm, one more is free
			add(t, n, fmt.Sprintf("p%d", i))
		}
		harness.Eventually(t, patience, "the subnet is full", func() error {
			if sn, _ := l.Books().Subnet("tiny"); sn.Free > 0 {
				return fmt.Errorf("%d free", sn.Free)
			}
			return nil
		})
		add(t, n, "p2")
		full(t, n, "p3", "subnet", "free")
		takesPods(t, n)
		harness.OK(t, l.Cloud.DeleteNetworkInterface(other.ID))
		_, err = n.AddPod(within(t, 10*time.Minute), "p3", nodeOptions) // its count is asked for once a minute
		harness.OK(t, err)
	})
	t.Run("ENIs", func(t *testing.T) {
		n, err := l.Node("node-1")
		harness.OK(t, err)
		for i := range 9 {
			add(t, n, fmt.Sprintf("p%d", i))
		}
		full(t, n, "tenth", "every ENI", "instance type")
		harness.Eventually(t, patience, "an ADD gives up when it is told to", func() error {
			begun := time.Now()
			fails(t, addOnce(t, n, "tenth"), types.ErrTryAgainLater, "no address")
			took := time.Since(begun)
			if took < 900*time.Millisecond {
				t.Errorf("the ADD waited %v, configured is 1s", took)
			}
			if took > 30*time.Second { // the machine may have stood still once
				return fmt.Errorf("it waited %v, configured is 1s, and 45s if nothing is", took)
			}
			return nil
		})
		takesPods(t, n)
		remove(t, n, "p0")
		add(t, n, "tenth")
	})
	t.Run("max-pods", func(t *testing.T) {
		n, err := l.Node("capped")
		harness.OK(t, err)
		for i := range 4 {
			add(t, n, fmt.Sprintf("p%d", i))
		}
		full(t, n, "fifth", "max-pods")
		var assigned int
		for _, e := range enis(l, n) {
			assigned += len(e.Secondary)
		}
		if assigned != 4 {
			t.Errorf("%d addresses are assigned, max-pods is 4", assigned)
		}
		remove(t, n, "p1")
		add(t, n, "fifth")
	})
	harness.Settle(t, l)
}
