package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/test/harness/check"
)

// withTrunk returns the settings of a node with a trunk.
func withTrunk(minimum, free int) eni.Settings {
	s := settings(minimum, free)
	s.Trunk = true
	return s
}

// wantTrunk checks that a node has one trunk in EC2, and that the node's status reports it.
func (w *writer) wantTrunk(t *testing.T, in *world) (trunk cloud.ENI) {
	t.Helper()
	list := in.trunks(w.instance)
	if len(list) != 1 {
		t.Fatalf("%s has %d trunks, want one; status %+v", w.name, len(list), w.last())
	}
	trunk = list[0]
	st := w.last().Trunk
	if st == nil || st.ID != trunk.ID || st.MAC.String() != trunk.MAC.String() || st.DeviceIndex != trunk.Attachment.DeviceIndex || st.Reason != "" {
		t.Errorf("status of the trunk = %+v, does not match EC2's %+v", st, trunk)
	}
	return trunk
}

// wantNoTrunk checks that the node has no trunk, and the reported reason.
func (w *writer) wantNoTrunk(t *testing.T, in *world, reason string) {
	t.Helper()
	check.Equal(t, len(in.trunks(w.instance)), 0, "trunks of %s (status %+v)", w.name, w.last())
	if st := w.last().Trunk; st == nil || st.ID != "" || st.Reason != reason || st.Message == "" {
		t.Errorf("status of the trunk = %+v, want reason %s", st, reason)
	}
}

// A trunk is created like other ENIs, in the primary ENI's subnet, without addresses for pods. It takes the slot of
// an ENI for pods, however many pods there are.
func TestTrunk(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.State.AddSubnet("subnet-pods", "zone-a", "10.1.0.0/16", nil)
		w.cloud.State.AddSecurityGroup("sg-pods", nil)
		s := withTrunk(0, 8)
		s.SubnetIDs, s.Groups = []string{"subnet-pods"}, []string{"sg-pods"}
		n := w.operator(w.cloud).set(t, w.objects[0], s)
		n.run(60) // more than the node can have addresses for
		pass(minute)
		trunk := n.wantTrunk(t, w)
		tags := trunk.Tags
		if trunk.SubnetID != "subnet-home" || !slices.Equal(trunk.Groups, s.Groups) || trunk.Description != eni.Description("i-000") ||
			tags[eni.TagCluster] != "test" || tags[eni.TagOwner] != eni.Owner || tags[eni.TagInstanceID] != "i-000" || tags[eni.TagCreatedAt] == "" {
			t.Errorf("trunk = %+v, want it in subnet-home with groups %v and Berth's description and tags", trunk, s.Groups)
		}
		if at := trunk.Attachment; at.DeviceIndex != 3 || !at.DeleteOnTermination || len(trunk.Addresses)+len(trunk.Prefixes) > 0 {
			t.Errorf("trunk = %+v, attachment = %+v, want device index 3 and no addresses", trunk, at)
		}
		if with, waiting := n.pods(); with != 28 || waiting != 32 {
			t.Errorf("%d pods have addresses and %d are waiting, want the 28 addresses of two ENIs", with, waiting)
		}
		if slices.ContainsFunc(n.inventory().ENIs, func(e eni.ENI) bool { return e.ID == trunk.ID }) {
			t.Error("the trunk is published as an ENI for pods")
		}
		if st := n.last(); st.LastError != "" || st.Shortage != plan.ReasonENILimit || st.Outdated != 0 {
			t.Errorf("status = %+v, want a shortage for the reason %s, no error and no outdated ENIs", st, plan.ReasonENILimit)
		}
	})
}

// The status explains why the node has no trunk, and pods get their addresses.
func TestNoTrunk(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world)
		reason string
		pods   int // pods that get addresses
	}{
		"instance type without branches": {func(w *world) {
			w.objects[0] = newObject("node-000", "i-t3")
			w.cloud.State.AddInstance("i-t3", "t3.xlarge", "subnet-home")
		}, plan.ReasonNoBranches, 42},
		"foreign trunk": {func(w *world) {
			w.cloud.State.AddENI("i-000", 1, cloud.InterfaceTrunk, map[string]string{eni.TagCluster: "test", eni.TagOwner: eni.Owner})
		}, plan.ReasonOtherTrunk, 28},
	} {
		t.Run(name, inBubble(1, func(t *testing.T, w *world) {
			c.before(w)
			w.apart = true // the VPC has an instance without a node, or a foreign ENI
			n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 8))
			n.runFor(60, 30*minute)
			if st := n.last().Trunk; st == nil || st.ID != "" || st.Reason != c.reason {
				t.Errorf("status of the trunk = %+v, want reason %s", st, c.reason)
			}
			for _, call := range w.cloud.Front.Calls() {
				if strings.HasPrefix(call.Op, "Detach") || strings.HasPrefix(call.Op, "Delete") {
					t.Errorf("unexpected call %+v", call)
				}
			}
			if with, _ := n.pods(); with != c.pods {
				t.Errorf("%d pods have addresses, want %d", with, c.pods)
			}
		}))
	}
}

// While ENIs for pods take all slots, the trunk waits until one of them is in excess.
func TestTrunkWaitsForRoom(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		n := w.operator(w.cloud).set(t, w.objects[0], settings(0, 1))
		n.runFor(40, minute)
		n.wantPods(t, 40)
		n.configure(t, withTrunk(0, 1))
		pass(10 * minute)
		n.wantNoTrunk(t, w, plan.ReasonNoRoom)
		n.wantPods(t, 40)
		for n.last().Available-n.last().Used < 16 {
			n.end()
			n.runFor(0, minute)
			if with, _ := n.pods(); with == 0 || len(w.trunks("i-000")) > 0 {
				break
			}
		}
		pass(5 * minute)
		n.wantTrunk(t, w)
		n.kept(t, w)
	})
}

func (w *writer) kept(t *testing.T, in *world) {
	t.Helper()
	in.kept()
	if _, waiting := w.pods(); waiting > 0 {
		t.Errorf("%d pods are waiting, want none", waiting)
	}
}

// A trunk with branches stays although it is no longer configured, causes no errors, and is detached after its last
// branch.
func TestTrunkWithBranches(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 8))
		pass(minute)
		trunk := n.wantTrunk(t, w)
		branch := w.make("test", "i-000", time.Now(), func(*cloud.CreateENI) {}) // tagged as an ENI of the node
		a := check.Must(w.cloud.AssociateBranch(t.Context(), cloud.Association{TrunkID: trunk.ID, BranchID: branch.ID, VLAN: 7}, ""))(t)
		n.configure(t, settings(0, 8))
		n.runFor(2, 30*minute)
		if tries := w.cloud.Front.Count("DetachENI"); tries < 5 || tries > 60 {
			t.Errorf("%d DetachENI calls in half an hour, want 5 to 60", tries)
		}
		if st := n.last(); st.Trunk == nil || st.Trunk.ID != trunk.ID || st.Trunk.Reason != plan.ReasonHasBranches || st.LastError != "" {
			t.Errorf("with branches: status = %+v, trunk = %+v, want reason HasBranches and no error", st, st.Trunk)
		}
		n.wantPods(t, 2)
		check.Equal(t, w.cloud.Front.Count("DeleteENI"), 0, "deletions")
		check.OK(t, w.cloud.DisassociateBranch(t.Context(), a.ID))
		check.OK(t, w.cloud.DeleteENI(t.Context(), branch.ID))
		pass(5 * minute)
		if st := n.last(); len(w.trunks("i-000")) > 0 || st.Trunk != nil || st.LastError != "" {
			t.Errorf("without branches: status = %+v, trunk = %+v, want no trunk and no error", st, st.Trunk)
		}
	})
}

// Neither branches nor ENIs that will become branches are collected as orphans, whatever their other tags. A trunk of
// a vanished instance is collected.
func TestBranchesAreNotLeftBehind(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.apart = true
		n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 8))
		pass(minute)
		trunk := n.wantTrunk(t, w)
		nic := func(q *cloud.CreateENI) { q.Tags[eni.TagNIC] = "0a1b2c3d" }
		left := map[string]bool{}
		for i, of := range []string{"i-000", "i-gone"} {
			left[w.make("test", of, time.Now(), nic).ID] = true
			branch := w.make("test", of, time.Now(), func(*cloud.CreateENI) {})
			left[branch.ID] = true
			if _, err := w.cloud.AssociateBranch(t.Context(), cloud.Association{TrunkID: trunk.ID, BranchID: branch.ID, VLAN: 7 + i}, ""); err != nil {
				t.Fatal(err)
			}
		}
		gone := w.make("test", "i-gone", time.Now(), func(q *cloud.CreateENI) { q.Type = cloud.InterfaceTrunk })
		for range 10 {
			n.runFor(4, 5*minute)
		}
		if with, _ := n.pods(); with != 28 {
			t.Errorf("%d pods have addresses, want the 28 of two ENIs", with)
		}
		for _, e := range w.cloud.State.Truth() {
			delete(left, e.ID)
			if e.ID == gone.ID {
				t.Error("trunk of a vanished instance was not deleted")
			}
			if e.Attachment == nil && e.Tags[eni.TagNIC] == "" && e.Type != cloud.InterfaceBranch {
				t.Errorf("orphan was not deleted: %+v", e)
			}
		}
		check.Equal(t, len(left), 0, "branch ENIs deleted: %v", left)
	})
}

// Neither lost replies nor throttled calls create a second trunk, or leak one.
func TestTrunkFailures(t *testing.T) {
	for _, op := range []string{"CreateENI", "AttachENI", "SetDeleteOnTermination", "DetachENI", "DeleteENI"} {
		for name, fault := range map[string]cloudfake.Fault{
			"lost":      {Err: cloudfake.Err(cloud.Transient, ""), After: true},
			"no effect": {Err: cloudfake.Err(cloud.Transient, "")},
			"throttled": {Err: cloudfake.Err(cloud.Throttled, "")},
		} {
			t.Run(op+"/"+name, inBubble(1, func(t *testing.T, w *world) {
				w.cloud.State.SetLag(2 * time.Second)
				fault.Op, fault.Times = op, 2
				w.cloud.Front.Inject(fault)
				n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 0))
				pass(5 * minute)
				if trunk := n.wantTrunk(t, w); !trunk.Attachment.DeleteOnTermination {
					t.Error("DeleteOnTermination is not set on the trunk")
				}
				n.configure(t, settings(0, 0))
				pass(10 * minute)
				if len(w.secondary()) > 0 || n.last().Trunk != nil || n.last().LastError != "" {
					t.Errorf("%d secondary ENIs, want none; status %+v", len(w.secondary()), n.last())
				}
				if made := w.cloud.Front.Count("CreateENI"); made > 1 && op != "CreateENI" || made > 3 {
					t.Errorf("%d CreateENI calls, want at most 3, and 1 unless creation fails", made)
				}
			}))
		}
	}
}

// A detach call whose reply was lost is followed by a lookup, even soon after the trunk was created.
func TestLostReplyToDetachingATrunk(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.Inject(cloudfake.Fault{Op: "DetachENI", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 0))
		pass(10 * time.Second)
		n.wantTrunk(t, w)
		n.configure(t, settings(0, 0))
		pass(30 * time.Second)
		if n.last().Trunk != nil || len(w.secondary()) > 0 || w.cloud.Front.Count("DeleteENI") != 1 {
			t.Errorf("%d secondary ENIs, want the trunk deleted; status %+v", len(w.secondary()), n.last())
		}
	})
}

// A creation with a lost reply that waits to be repeated is recalled for pods, too, and repeated later.
func TestLostTrunkCreationDoesNotBlockPods(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := pace.Cloud(w.cloud, pace.Options{Ceilings: map[string]pace.Limit{pace.CreateENI.Action: {Rate: 0.1, Burst: 1}}})
		s := settings(0, 1)
		n := w.operator(ec2).set(t, w.objects[0], s)
		pass(minute)
		w.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		s.Trunk = true
		n.configure(t, s)
		for i := range 2 { // while the call waits for the rate limit
			pass(2 * time.Second)
			n.runFor(5, time.Second)
			n.wantPods(t, 5*(i+1))
		}
		pass(2 * minute)
		n.wantTrunk(t, w)
		if made := w.cloud.Front.Count("CreateENI"); made != 3 || w.cloud.Front.Count("DeleteENI") > 0 {
			t.Errorf("%d CreateENI and %d DeleteENI calls, want 3 and none", made, w.cloud.Front.Count("DeleteENI"))
		}
	})
}

// killer stops an operator at an armed failpoint.
type killer struct {
	mu   sync.Mutex // guards all below
	stop func()
	hits int
}

func (k *killer) Acted(_ string, _ plan.Action, _ cloud.Class, err error, _ time.Duration) {
	if !errors.Is(err, failpoint.ErrHit) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hits++
	go k.stop()
}

// count returns how often the failpoint was hit.
func (k *killer) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hits
}

func (*killer) Listed(time.Duration, error) {}

func (*killer) Collected(eni.Collected) {}

// The operator crashes at each step of creating and removing a trunk in turn, and another one continues. No ENI
// leaks, and nothing is done twice.
func TestTrunkOverACrash(t *testing.T) {
	for _, point := range []string{"create", "attach", "set-deletion", "detach", "delete"} {
		for _, at := range []string{"before", "after"} {
			for _, lag := range []time.Duration{0, 2 * time.Second} {
				t.Run(fmt.Sprintf("%s.%s/lag=%v", point, at, lag), inBubble(1, func(t *testing.T, w *world) {
					restore := check.Must(failpoint.Set(fmt.Sprintf("eni.%s.%s=error@1", point, at)))(t)
					defer restore()
					w.cloud.State.SetLag(lag)
					w.cloud.State.SetAttachTime(time.Second)
					k := &killer{}
					w.observer = k
					var n *writer
					lead := func(s eni.Settings) {
						p := w.operator(w.cloud)
						k.mu.Lock()
						k.stop = p.stop
						k.mu.Unlock()
						n = p.set(t, w.objects[0], s)
					}
					settle := func(s eni.Settings) {
						before := k.count()
						pass(5 * minute)
						synctest.Wait()
						if k.count() > before {
							lead(s)
						}
						pass(10 * minute)
					}
					lead(withTrunk(0, 0))
					settle(withTrunk(0, 0))
					if trunk := n.wantTrunk(t, w); !trunk.Attachment.DeleteOnTermination {
						t.Error("DeleteOnTermination is not set on the trunk")
					}
					n.configure(t, settings(0, 0))
					settle(settings(0, 0))
					if len(w.secondary()) > 0 || n.last().Trunk != nil {
						t.Errorf("%d secondary ENIs, want none; status %+v", len(w.secondary()), n.last())
					}
					check.Equal(t, k.count(), 1, "hits of the failpoint")
					if n := w.cloud.Front.Count("CreateENI"); n > 2 { // one creation may have been repeated
						t.Errorf("%d CreateENI calls, want at most 2", n)
					}
				}))
			}
		}
	}
}

// A trunk that EC2 refuses to attach is reported and does not affect pods. The attachment is retried at increasing
// intervals.
func TestTrunkThatCannotBeAttached(t *testing.T) {
	for _, class := range []cloud.Class{cloud.Bug, cloud.Conflict, cloud.LimitReached} {
		t.Run(class.String(), inBubble(1, func(t *testing.T, w *world) {
			var allowed atomic.Bool
			var tries atomic.Int32
			ec2 := &api{Cloud: w.cloud, attaching: func(id string) error {
				for _, e := range w.cloud.State.Truth() {
					if !allowed.Load() && e.ID == id && e.Type == cloud.InterfaceTrunk {
						tries.Add(1)
						return cloudfake.Err(class, "")
					}
				}
				return nil
			}}
			n := w.operator(ec2).set(t, w.objects[0], withTrunk(0, 2))
			reported := false
			for range 20 {
				n.runFor(1, time.Second)
				reported = reported || strings.HasPrefix(n.last().LastError, string(plan.AttachTrunk))
			}
			n.wantPods(t, 20)
			if !reported {
				t.Errorf("no status had an error of %s; last status = %+v", plan.AttachTrunk, n.last())
			}
			pass(2 * time.Hour)
			check.AtMost(t, w.cloud.Front.Count("CreateENI"), 15, "CreateENI calls in two hours")
			check.AtMost(t, tries.Load(), 130, "AttachENI calls in two hours")
			for range 60 { // during an attempt the status may differ
				if n.last().Trunk.Reason == plan.ReasonPending {
					pass(time.Second)
				}
			}
			n.wantNoTrunk(t, w, plan.ReasonRefused)
			allowed.Store(true)
			pass(50 * minute)
			n.wantTrunk(t, w)
		}))
	}
}

// busyCreations is a cloud with an additional subnet for ENIs that belong to no node of the test.
type busyCreations struct{ *cloudfake.Cloud }

func (b busyCreations) CreateENI(ctx context.Context, q cloud.CreateENI) (cloud.ENI, error) {
	if q.SubnetID == ofOthers {
		return cloud.ENI{}, nil
	}
	return b.Cloud.CreateENI(ctx, q)
}

// While the creation of a trunk waits behind the needs of other nodes, pods get their addresses: the creation is
// recalled, and made when the node is idle.
func TestTrunkCreationIsRecalledForPods(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := pace.Cloud(busyCreations{w.cloud}, pace.Options{Ceilings: map[string]pace.Limit{pace.CreateENI.Action: {Rate: 0.1, Burst: 2}}})
		s := settings(0, 1)
		n := w.operator(ec2).set(t, w.objects[0], s)
		pass(minute)
		ctx, quiet := context.WithCancel(cloud.WithPriority(t.Context(), 2))
		var others sync.WaitGroup
		for range 20 {
			others.Go(func() {
				for ctx.Err() == nil {
					_, _ = ec2.CreateENI(ctx, cloud.CreateENI{SubnetID: ofOthers})
				}
			})
		}
		pass(minute)
		s.Trunk = true
		n.configure(t, s)
		pass(20 * time.Second) // every tenth turn goes to the oldest call
		if len(w.trunks("i-000")) > 0 {
			t.Fatal("the creation of the trunk did not wait")
		}
		n.runFor(5, time.Second)
		n.wantPods(t, 5)
		quiet()
		others.Wait()
		pass(5 * minute)
		n.wantTrunk(t, w)
	})
}

// While the primary ENI's subnet has no free address, no trunk is requested.
func TestTrunkInAFullSubnet(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.State.AddSubnet("subnet-small", "zone-a", "10.1.0.0/28", nil)
		w.cloud.State.AddInstance("i-small", "m5.xlarge", "subnet-small")
		w.objects[0] = newObject("node-000", "i-small")
		w.apart = true // the other instance has no node
		s := settings(0, 4)
		s.SubnetIDs = []string{"subnet-home"}
		n := w.operator(w.cloud).set(t, w.objects[0], s)
		pass(10 * minute)
		var fill []cloud.ENI
		for range 10 {
			e := check.Must(w.cloud.CreateENI(t.Context(), cloud.CreateENI{SubnetID: "subnet-small"}))(t)
			fill = append(fill, e)
		}
		before := w.cloud.Front.Count("CreateENI")
		s.Trunk = true
		n.configure(t, s)
		pass(10 * minute)
		n.wantNoTrunk(t, w, plan.ReasonTrunkSubnet)
		check.Equal(t, n.available(), 4, "addresses")
		check.Equal(t, w.cloud.Front.Count("CreateENI")-before, 0, "CreateENI calls in a full subnet")
		check.OK(t, w.cloud.DeleteENI(t.Context(), fill[0].ID))
		pass(minute)
		n.wantTrunk(t, w)
	})
}

// A subnet that refuses a trunk despite free addresses is retried at increasing intervals.
func TestTrunkInRefusingSubnet(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1000, Err: cloudfake.Err(cloud.SubnetFull, "")})
		n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 0))
		pass(30 * minute)
		if tries := w.cloud.Front.Count("CreateENI"); tries < 3 || tries > 20 {
			t.Errorf("%d CreateENI calls in half an hour, want 3 to 20", tries)
		}
		w.cloud.Front.ClearFaults()
		pass(10 * minute)
		n.wantTrunk(t, w)
	})
}

// The reply to the creation of a trunk may omit its type. A reply with another type is not used, and the new trunk is
// found by a listing.
func TestTrunkRepliesOfAnotherType(t *testing.T) {
	for _, kind := range []cloud.InterfaceType{"", cloud.InterfaceOrdinary} {
		t.Run(string(kind), inBubble(1, func(t *testing.T, w *world) {
			w.cloud.State.SetLag(3 * time.Second)
			ec2 := &api{Cloud: w.cloud, created: func(_ cloud.CreateENI, e *cloud.ENI) { e.Type = kind }}
			n := w.operator(ec2).set(t, w.objects[0], withTrunk(0, 0))
			pass(2 * minute)
			if trunk := n.wantTrunk(t, w); trunk.Attachment.DeviceIndex != 3 {
				t.Errorf("trunk attached like an ENI for pods: %+v", trunk.Attachment)
			}
			check.Equal(t, w.cloud.Front.Count("CreateENI"), 1, "CreateENI calls")
		}))
	}
}

// A trunk that is no longer configured before EC2 allowed its creation is not created.
func TestUnconfiguredTrunkIsNotCreated(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.cloud.Front.Inject(cloudfake.Fault{Op: "CreateENI", Times: 1000, Err: cloudfake.Err(cloud.Throttled, "")})
		n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 0))
		pass(minute)
		n.configure(t, settings(0, 0))
		w.cloud.Front.ClearFaults()
		pass(5 * minute)
		if st := n.last(); w.cloud.Front.Count("DeleteENI") > 0 || st.Trunk != nil || st.LastError != "" {
			t.Errorf("%d DeleteENI calls, status = %+v, want no trunk and no calls", w.cloud.Front.Count("DeleteENI"), st)
		}
	})
}

// Recording a trunk as committed for release, as for ENIs for pods, does not detach it.
func TestTrunkIsNotCommitted(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		n := w.operator(w.cloud).set(t, w.objects[0], withTrunk(0, 0))
		pass(minute)
		trunk := n.wantTrunk(t, w)
		n.mu.Lock()
		n.detaching[trunk.ID] = true
		n.mu.Unlock()
		for range 10 {
			n.runFor(0, minute)
		}
		n.wantTrunk(t, w)
		check.Equal(t, w.cloud.Front.Count("DetachENI"), 0, "DetachENI calls")
	})
}
