package enisource

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// labNode is a source that uses a lab's EC2 API, over HTTP and the real SDK.
type labNode struct {
	*Source
	lab     *endpoints.Cloud
	id      string
	passes  retry.Signal // set after each reconciliation
	stop    func()
	mu      sync.Mutex // guards creates
	creates int
	logs    strings.Builder // written by one handler; read it once the node has stopped
}

// Acted implements eni.Observer.
func (n *labNode) Acted(a plan.Action, _ cloud.Class, err error, _ time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.Kind == plan.Create && err == nil {
		n.creates++
	}
}

// Collected implements eni.Observer.
func (*labNode) Collected(eni.Collected) {}

// Reconciled implements eni.Observer.
func (n *labNode) Reconciled(time.Duration) { n.passes.Set() }

func labSpec() spec.Spec {
	s := spec.Default()
	s.Throttle = "none"
	return s
}

func serve(t *testing.T, s spec.Spec) *endpoints.Cloud {
	t.Helper()
	lab := check.Must(endpoints.Serve(s))(t)
	t.Cleanup(lab.Close)
	return lab
}

// labSetup are the settings of a labNode.
type labSetup struct {
	eni.Settings
	instanceRole bool // use the role of the instance, node-a, by the metadata service
}

func startLab(t *testing.T, s spec.Spec, p ipam.Policy, tune ...func(*labSetup)) *labNode {
	t.Helper()
	return startOn(t, serve(t, s), p, &memStore{}, nil, tune...)
}

func startOn(t *testing.T, lab *endpoints.Cloud, p ipam.Policy, store *memStore, leases map[int]source.Lease, tune ...func(*labSetup)) *labNode {
	t.Helper()
	o := labSetup{Settings: eni.Settings{Policy: p}}
	for _, change := range tune {
		change(&o)
	}
	n := &labNode{lab: lab, id: lab.Cloud.Instances.ID("node-a"), passes: retry.NewSignal()}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &n.logs), nil))
	permissions := NewPermissions(NewMetrics(prometheus.NewRegistry()), clock.Real{}, log)
	var key spec.AccessKey
	if access := lab.Credentials(); !o.instanceRole {
		key.ID, key.Secret = access.AccessKeyID, access.SecretAccessKey
	}
	client := labClient(t, lab, key, permissions)
	var err error
	n.Source, err = New(Options{
		InstanceID: n.id, Datapath: newLinks(), Cooling: time.Second, Store: store, Logger: log, Permissions: permissions,
	}, eni.Config{
		Settings: o.Settings, Cluster: "lab", Cloud: client, Intents: &store.MemoryIntents, Observer: n,
		Timing: eni.Timing{ShrinkDelay: time.Second, ListingInterval: time.Second, Settle: 2 * time.Second, Lag: time.Second, SlowRetry: time.Second},
	})
	check.OK(t, err)
	for i, l := range leases {
		check.OK(t, n.Restore(sourcetest.Request(i), l))
	}
	n.stop = sourcetest.Run(t, n)
	return n
}

// until waits for a condition, checking it after every reconciliation.
func (n *labNode) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	for !ok() {
		select {
		case <-n.passes:
		case <-deadline:
			t.Fatalf("timed out waiting until %s; snapshot = %+v", what, n.Snapshot())
		}
	}
}

// pods acquires addresses for a number of pods concurrently.
func (n *labNode) pods(t *testing.T, from, to int) map[int]source.Lease {
	t.Helper()
	return sourcetest.AddAll(t, n, from, to, 2*time.Minute)
}

// release ends the pods 0..to.
func (n *labNode) release(to int) {
	for i := range to {
		n.Release(key(i))
	}
}

// owned checks that each address is a secondary address of the ENI that its lease names.
func (n *labNode) owned(t *testing.T, leases map[int]source.Lease) {
	t.Helper()
	for i, l := range leases {
		if e, ok := n.lab.Cloud.Snapshot().ENI(l.ENI); !ok || l.IPv4 == e.Primary || !e.Owns(l.IPv4) {
			t.Errorf("pod %d got %v of %s, which does not have it", i, l.IPv4, l.ENI)
		}
	}
}

// agree reports whether the lab and the node agree, and no ENI of Berth is detached or would outlive
// its instance.
func (n *labNode) agree() bool {
	assigned := map[netip.Addr]string{}
	for _, e := range n.lab.Cloud.Snapshot().ENIs {
		mine := e.Tags[eni.TagInstanceID] == n.id
		if e.Attachment == nil || e.Attachment.InstanceID != n.id {
			if mine {
				return false
			}
			continue
		}
		if e.Attachment.Status != vpc.Attached || mine && !e.Attachment.DeleteOnTermination {
			return false
		}
		for _, a := range e.Secondary {
			assigned[a] = e.ID
		}
		for _, p := range e.Prefixes {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				assigned[a] = e.ID
			}
		}
	}
	own := n.Snapshot().Addresses
	for _, a := range own {
		if assigned[a.Addr] != a.ENI {
			return false
		}
	}
	return len(own) == len(assigned)
}

// A node in node mode with prefixes grows with its pods, and shrinks when they end.
func TestLabGrowsAndShrinks(t *testing.T) {
	n := startLab(t, labSpec(), ipam.Policy{PrefixDelegation: true, WarmPrefix: 1})
	n.owned(t, n.pods(t, 0, 20))
	n.until(t, "EC2 and the node agree with 20 pods", n.agree)
	grown := len(n.Snapshot().Addresses)
	n.release(20)
	n.until(t, "it shrinks, and EC2 and the node agree", func() bool { return len(n.Snapshot().Addresses) < grown && n.agree() })
	n.until(t, "surplus ENIs are deleted", func() bool { return len(n.Snapshot().Groups) == 1 && n.agree() })
}

// The lab rejects changes to objects that its listings do not show yet, throttles calls, and loses replies.
// Pods still get their addresses, and nothing leaks.
func TestLabWithFaults(t *testing.T) {
	s := labSpec()
	s.Consistency.Writes = true
	s.RateLimits = map[string]spec.RateLimit{"*": {Bucket: 4, Refill: 4}}
	for _, action := range []string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface", "UnassignPrivateIpAddresses", "DetachNetworkInterface", "DeleteNetworkInterface"} {
		s.Faults = append(s.Faults, spec.Fault{Action: action, Kind: "lostReply", Count: 1})
	}
	n := startLab(t, s, ipam.Policy{WarmIP: 1})
	n.pods(t, 0, 20)
	n.until(t, "EC2 and the node agree with 20 pods", n.agree)
	n.mu.Lock()
	check.Equal(t, n.creates, 2, "ENIs created for 20 pods")
	n.mu.Unlock()
	n.release(20)
	n.until(t, "all surplus addresses are released", func() bool { return len(n.Snapshot().Addresses) == 1 && n.agree() })
}

func TestLabDeniesAnAction(t *testing.T) {
	s := labSpec()
	s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey()}
	s.AccessKeys[0].Actions = []string{"ec2:Describe*"}
	n := startLab(t, s, ipam.Policy{WarmIP: 1})
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := sourcetest.Try(t, n, sourcetest.Request(1), time.Second)
		ex, ok := errors.AsType[*source.Exhausted](err)
		if ok && ex.Reason == "permission" {
			return
		}
		if !ok || time.Now().After(deadline) {
			t.Fatalf("error = %v, want reason permission", err)
		}
	}
}

// A restarted daemon remembers its addresses, and adopts them.
func TestLabRestart(t *testing.T) {
	lab, store := serve(t, labSpec()), &memStore{}
	n := startOn(t, lab, ipam.Policy{WarmIP: 1}, store, nil)
	leases := n.pods(t, 0, 12)
	n.until(t, "EC2 and the node agree", n.agree)
	n.stop()
	n = startOn(t, lab, ipam.Policy{WarmIP: 1}, store, leases)
	for i, l := range n.pods(t, 1000, 1002) {
		for j, before := range leases {
			if l.IPv4 == before.IPv4 {
				t.Errorf("%v was assigned to pods %d and %d", l.IPv4, j, i)
			}
		}
	}
	n.until(t, "EC2 and the node agree after the restart", n.agree)
	n.mu.Lock()
	defer n.mu.Unlock()
	check.AtMost(t, n.creates, 1, "ENIs created after the restart")
}

// EC2's reply is wrong once. No pod gets an address that its ENI does not have, and the node detects the
// error by a lookup.
func TestImpossibleRepliesAreRejected(t *testing.T) {
	const (
		assign  = "AssignPrivateIpAddresses"
		create  = "CreateNetworkInterface"
		list    = "DescribeNetworkInterfaces"
		address = "(<assignedPrivateIpAddressesSet><item><privateIpAddress>)[^<]*()"
		second  = "(<privateIpAddress>)[^<]*(</privateIpAddress><privateDnsName>[^<]*</privateDnsName><primary>false)"
		id      = "(<networkInterfaceId>)[^<]*()"
		mac     = "(<macAddress>)[^<]*()"
	)
	// The ENIs of the node, and the primary ENI of another node, in the lab.
	type enis struct{ primary, other, stranger vpc.ENI }
	value := func(v string) func(enis) string { return func(enis) string { return v } }
	for name, lie := range map[string]struct {
		action, pattern string
		between         func(enis) string // replacement between the two groups of the pattern
		times           int
	}{
		"assigned: the primary address":                        {assign, address, func(e enis) string { return e.primary.Primary.String() }, 1},
		"assigned: an address of another ENI":                  {assign, address, func(e enis) string { return e.other.Secondary[0].String() }, 1},
		"assigned: the primary address of another ENI":         {assign, address, func(e enis) string { return e.other.Primary.String() }, 1},
		"assigned: an address outside of the subnet":           {assign, address, value("10.9.0.9"), 1},
		"assigned: one too many":                               {assign, "()(</assignedPrivateIpAddressesSet>)", value("<item><privateIpAddress>10.0.3.200</privateIpAddress></item>"), 1},
		"assigned: one twice":                                  {assign, "(<item>.*?</item>)(</assignedPrivateIpAddressesSet>)", value("$1"), 1},
		"assigned: to another ENI":                             {assign, id, func(e enis) string { return e.other.ID }, 1},
		"created: with an address of another ENI":              {create, second, func(e enis) string { return e.other.Secondary[0].String() }, 1},
		"created: the primary ENI":                             {create, id, func(e enis) string { return e.primary.ID }, 1},
		"created: the primary ENI of another instance":         {create, id, func(e enis) string { return e.stranger.ID }, 1},
		"created: with the MAC address of the primary ENI":     {create, mac, func(e enis) string { return e.primary.MAC.String() }, 1},
		"attached: with the attachment of another ENI":         {"AttachNetworkInterface", "(<attachmentId>)[^<]*()", func(e enis) string { return e.other.Attachment.ID }, 1},
		"listed: every ENI with the primary address of a node": {list, second, func(e enis) string { return e.primary.Primary.String() }, 3},
		"listed: every ENI with the same MAC address":          {list, mac, func(e enis) string { return e.primary.MAC.String() }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := labSpec()
			s.Instances[0].Interfaces = []spec.Interface{{DeviceIndex: 1, Secondary: 1, DeleteOnTermination: true}}
			lab := serve(t, s)
			on := func(instance string, index int) vpc.ENI {
				for _, e := range lab.Cloud.Snapshot().InstanceENIs(lab.Cloud.Instances.ID(instance)) {
					if e.Attachment.DeviceIndex == index {
						return e
					}
				}
				t.Fatalf("%s has no ENI at index %d", instance, index)
				return vpc.ENI{}
			}
			between := lie.between(enis{on("node-a", 0), on("node-a", 1), on("node-b", 0)})
			check.Must(lab.Cloud.API.Inject(spec.Fault{Kind: "wrongReply", Action: lie.action, Pattern: lie.pattern, Replacement: "${1}" + between + "${2}", Count: lie.times}))(t)
			n := startOn(t, lab, ipam.Policy{WarmIP: 1}, &memStore{}, nil)
			const pods = 12 // the primary ENI has addresses for nine
			n.owned(t, n.pods(t, 0, pods))
			n.until(t, "the wrong reply was sent", func() bool { return len(lab.Cloud.API.Faults()) == 0 })
			agree := func() bool {
				own := map[netip.Addr]string{}
				for _, a := range n.Snapshot().Addresses {
					own[a.Addr] = a.ENI
				}
				for _, e := range lab.Cloud.Snapshot().InstanceENIs(n.id) {
					for _, a := range e.Secondary {
						if e.Attachment.DeviceIndex != 1 && own[a] != e.ID {
							return false
						}
						delete(own, a)
					}
				}
				return len(own) == 0
			}
			n.until(t, "EC2 and the node agree", agree)
		})
	}
}

// A reply to a creation may lack the tags. The ENI is nevertheless attached immediately, as one of
// Berth's.
func TestCreationRepliesWithoutTags(t *testing.T) {
	lab := serve(t, labSpec())
	if _, err := lab.Cloud.API.Inject(spec.Fault{Kind: "wrongReply", Action: "CreateNetworkInterface", Pattern: "(?s)<tagSet>.*?</tagSet>", Replacement: "<tagSet/>"}); err != nil {
		t.Fatal(err)
	}
	n := startOn(t, lab, ipam.Policy{WarmIP: 1}, &memStore{}, nil)
	n.pods(t, 0, 12) // the primary ENI has addresses for nine
	if met := lab.Cloud.API.FaultsMet()["wrongReply"]; met == 0 {
		t.Fatal("no reply was changed")
	}
	if errors := lab.Cloud.API.Stats()["AttachNetworkInterface"].Errors; len(errors) > 0 {
		t.Errorf("errors of AttachNetworkInterface = %v, want none", errors)
	}
	for _, c := range lab.Cloud.API.CallLog() {
		if c.Params["Filter.1.Name"] != nil && c.Params["Filter.1.Name"][0] == "network-interface-id" {
			t.Errorf("%v was looked up individually, so its creation was not trusted", c.Params["Filter.1.Value.1"])
		}
	}
}
