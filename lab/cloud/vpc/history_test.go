package vpc

import (
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/spec"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// slow returns a cloud with lag and delays, on a clock that the test advances.
func slow(t *testing.T) (*Cloud, *clock.Fake) {
	t.Helper()
	fake := clock.NewFake(time.Unix(1e9, 0))
	s := spec.Default()
	s.Consistency.Describe, s.IMDS.Delay = spec.Duration(2*time.Second), spec.Duration(5*time.Second)
	s.Delays = spec.Delays{Attach: spec.Duration(time.Second), Link: spec.Duration(time.Second), Detach: spec.Duration(time.Second)}
	c, err := New(s, WithClock(fake))
	ok(t, err)
	t.Cleanup(c.Close)
	return c, fake
}

func plugNew(t *testing.T, c *Cloud) (eniID, attachmentID string) {
	t.Helper()
	e, err := c.ENIs.Create(CreateRequest{SubnetID: c.store.subnetNamed("a").ID})
	ok(t, err)
	a, err := c.ENIs.Attach(AttachRequest{ENIID: e.ID, InstanceID: c.Instances.ID("node-a"), DeviceIndex: 1})
	ok(t, err)
	return e.ID, a
}

// Deleted ENIs, terminated instances and old calls use no memory once no reader can see them.
func TestDeletedResourcesAreForgotten(t *testing.T) {
	synctest.Test(t, whatIsGoneIsForgotten)
}

func whatIsGoneIsForgotten(t *testing.T) {
	c, fake := slow(t)
	for n := range 3 * callLogSize / 20 {
		id, attachment := plugNew(t, c)
		for range 20 {
			c.API.Finish(Call{Action: "AttachNetworkInterface"}, "")
		}
		fake.Advance(time.Second)
		ok(t, c.ENIs.Detach(attachment, false))
		fake.Advance(time.Second)
		ok(t, c.ENIs.Delete(id))
		if n%10 == 0 {
			i, err := c.Instances.Launch(spec.Instance{Name: "guest", Type: "t3.nano", Subnet: "a", Role: "node"})
			ok(t, err)
			c.Keys.RoleCredentials(i.ID)
			if _, err := c.Instances.TerminateAll(i.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	fake.Advance(48 * time.Hour)
	c.Snapshot()    // runs due timers
	synctest.Wait() // waits for timers of the cloud that still deliver events
	for what, n := range map[string]int{
		"ENIs": len(c.store.enis.rows) - 2, "order of ENIs": len(c.store.enis.ids) - 2, "instances": len(c.store.instances.rows) - 2,
		"places of ENIs": len(c.attachments.hosts) - 2, "ENIs ever attached": len(c.attachments.ever) - 2, "attached ENIs": len(c.attachments.current) - 2, "attachments": len(c.attachments.byID) - 2,
		"timers": len(c.world.timers), "events": len(c.world.events.queue), "role keys": len(c.Keys.keys) - 1, "current keys": len(c.Keys.current),
	} {
		if n != 0 {
			t.Errorf("%d entries too many: %s", n, what)
		}
	}
	if n := len(c.API.CallLog()); n != callLogSize {
		t.Errorf("call log has %d calls, want the last %d", n, callLogSize)
	}
	for id, versions := range c.store.subnets.rows {
		if len(versions) > 10 { // versions of the last five seconds remain
			t.Errorf("%d versions of %s, want at most 10", len(versions), id)
		}
	}
}

// Closing a cloud ends the goroutines of pending changes; otherwise the synctest bubble would not end.
func TestCloseEndsPendingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := slow(t)
		plugNew(t, c)
	})
}

// The call log limits the parameters that it keeps, and keeps no reference to the request body.
func TestCallLogIsBounded(t *testing.T) {
	c, err := New(spec.Default())
	ok(t, err)
	t.Cleanup(c.Close)
	before := heapBytes()
	for i := range 500 {
		body := "A=1&B=" + strings.Repeat("b", 200<<10) + "&C=" + strings.Repeat("c", 2000) + "&N=" + strconv.Itoa(i)
		form, err := url.ParseQuery(body)
		ok(t, err)
		c.API.Finish(Call{Action: "DescribeVpcs", Params: form}, "")
	}
	if grown := heapBytes() - before; grown > 16<<20 {
		t.Errorf("500 calls of 200 kB left %d bytes, want at most 16 MiB", grown)
	}
	log := c.API.CallLog()
	got := log[len(log)-1]
	if got.Params["N"][0] != "499" || got.Params["A"][0] != "1" || got.Omitted != 1 || len(got.Params) != 3 {
		t.Errorf("logged parameters %v with %d omitted, want A and N of call 499 and one omitted", got.Params, got.Omitted)
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
