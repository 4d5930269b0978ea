package podevents

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berthnet/berth/internal/node/attachment"
)

var begin = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func pod(name string) attachment.Pod {
	return attachment.Pod{Namespace: "default", Name: name, UID: "uid-" + name}
}

func newsOf(name string, k Kind, cause string) News {
	return News{Pod: pod(name), IfName: "eth0", Kind: k, Cause: cause, Message: "no address is free"}
}

// writer writes the requests of a queue, with a fake clock.
type writer struct {
	*queue
	now     time.Time
	answer  error // result of every request
	dropped int
}

func newWriter() *writer { return &writer{queue: newQueue("node-1"), now: begin} }

func (d *writer) tell(n News) {
	_, dropped := d.add(n, d.now)
	d.dropped += dropped
}

// pass advances the clock by seconds, and returns the requests written meanwhile: reason, pod,
// and count.
func (d *writer) pass(t time.Duration) (written []string) {
	for end := d.now.Add(t); ; d.now = d.now.Add(time.Second) {
		for {
			r, _, dropped := d.next(d.now)
			d.dropped += dropped
			if r == nil {
				break
			}
			written = append(written, fmt.Sprintf("%s %s %d", r.Reason, r.Pod.Name, r.Count))
			if d.done(r, d.answer, d.now) {
				break // no answer, so the Recorder pauses
			}
		}
		if !d.now.Before(end) {
			return written
		}
	}
}

func (d *writer) want(t *testing.T, passed time.Duration, want ...string) {
	t.Helper()
	if got := d.pass(passed); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("writes %v after the start = %q, want %q", d.now.Sub(begin), got, want)
	}
}

// For a pod whose ADDs fail for an hour, an Event is written immediately, and its count is updated
// at growing intervals.
func TestRepeatedReportsAreCounted(t *testing.T) {
	d := newWriter()
	d.tell(newsOf("a", NoAddress, "subnet-full"))
	d.want(t, time.Second, "NoAddress a 1")
	d.want(t, 10*time.Minute)
	requests := 0
	for range 240 {
		d.tell(newsOf("a", NoAddress, "subnet-full"))
		requests += len(d.pass(15 * time.Second))
	}
	if requests < 6 || requests > 12 {
		t.Errorf("%d requests for 240 failures in an hour, want 6 to 12", requests)
	}
	d.tell(newsOf("a", NoAddress, "eni-limit"))
	d.want(t, time.Second, "NoAddress a 1")
}

// If a problem of a pod was reported, its address is reported too, once.
func TestAddressIsReportedAfterAProblem(t *testing.T) {
	d := newWriter()
	attached := News{Pod: pod("a"), IfName: "eth0", Kind: Attached, Addresses: []string{"10.0.0.5/32"}}
	d.tell(attached)
	d.want(t, time.Minute)

	d.tell(newsOf("a", WaitsForAddress, "growing"))
	d.tell(newsOf("b", WaitsForAddress, "growing"))
	d.want(t, time.Second, "WaitingForAddress a 1", "WaitingForAddress b 1")
	d.tell(newsOf("a", NoAddress, "growing"))
	d.want(t, 90*time.Second, "NoAddress a 1")
	d.tell(attached)
	r, _, _ := d.next(d.now)
	if r == nil || r.Reason != "AddressAssigned" || r.Warning || r.Note != "has 10.0.0.5/32, 1m31s after the first of these Events" {
		t.Fatalf("request = %+v, want AddressAssigned", r)
	}
	d.done(r, nil, d.now)
	d.tell(attached)
	d.want(t, time.Hour)
	if len(d.series) != 0 || len(d.of) != 0 {
		t.Errorf("%d series of pods %v are left, want none", len(d.series), d.of)
	}
}

// A problem that was over before it could be reported is not reported.
func TestResolvedProblemIsNotReported(t *testing.T) {
	d := newWriter()
	d.tell(newsOf("a", WaitsForAddress, "growing"))
	d.tell(News{Pod: pod("a"), IfName: "eth0", Kind: Attached})
	d.want(t, time.Hour)
	// Another interface of the pod and another pod with its name have series of their own.
	d.tell(newsOf("a", WaitsForAddress, "growing"))
	d.tell(News{Pod: pod("a"), IfName: "net1", Kind: Attached})
	again := pod("a")
	again.UID = "another"
	d.tell(News{Pod: again, IfName: "eth0", Kind: Attached})
	d.want(t, time.Second, "WaitingForAddress a 1")
}

// Requests and memory are bounded, regardless of the number of failing ADDs and pods.
func TestEventStormIsBounded(t *testing.T) {
	d := newWriter()
	for i := range 10_000 {
		d.tell(newsOf(fmt.Sprint("p", i), NoAddress, "subnet-full"))
	}
	if len(d.series) > most {
		t.Errorf("%d series are kept, want at most %d", len(d.series), most)
	}
	if got := len(d.pass(0)); got != burst {
		t.Errorf("%d immediate requests, want %d", got, burst)
	}
	got, limit := len(d.pass(time.Minute)), int(time.Minute/each)
	if got != limit {
		t.Errorf("%d requests in the following minute, want %d", got, limit)
	}
	d.pass(2 * stale)
	if reported := burst + limit + int(2*stale/each); d.dropped < 10_000-reported {
		t.Errorf("%d counted as dropped, want at least %d", d.dropped, 10_000-reported)
	}
	d.pass(2 * forget)
	if len(d.series) != 0 || len(d.of) != 0 {
		t.Errorf("%d series are left after hours, want none", len(d.series))
	}
}

// The API server rejects Events permanently, or is temporarily unavailable.
func TestRejectedAndFailedRequests(t *testing.T) {
	d := newWriter()
	d.answer = fmt.Errorf("%w: forbidden", ErrFinal)
	d.tell(newsOf("a", NoAddress, "subnet-full"))
	d.want(t, time.Minute, "NoAddress a 1") // once, without retries
	d.tell(newsOf("a", NoAddress, "subnet-full"))
	d.want(t, time.Second, "NoAddress a 1") // the next failure is a new Event

	d.answer = errors.New("connection refused")
	d.tell(newsOf("b", NoAddress, "subnet-full"))
	d.pass(30 * time.Second)
	d.answer = nil
	d.want(t, time.Second, "NoAddress b 1")

	d.answer = errors.New("connection refused")
	d.tell(newsOf("c", NoAddress, "subnet-full"))
	d.pass(stale + 2*time.Second)
	d.answer = nil
	d.want(t, time.Minute)
	if d.dropped != 1 {
		t.Errorf("%d counted as dropped, want that of c", d.dropped)
	}

	// An Event that no longer exists is created again with the next report.
	d.tell(newsOf("d", NoAddress, "subnet-full"))
	d.want(t, time.Second, "NoAddress d 1")
	d.answer = fmt.Errorf("%w: not found", ErrFinal)
	d.tell(newsOf("d", NoAddress, "subnet-full"))
	d.want(t, 2*time.Minute, "NoAddress d 2")
	d.answer = nil
	d.tell(newsOf("d", NoAddress, "subnet-full"))
	d.want(t, time.Second, "NoAddress d 1")
}

// Updates of existing Events are written only after new
// Events of other pods.
func TestNewEventsComeFirst(t *testing.T) {
	d := newWriter()
	for i := range burst {
		d.tell(newsOf(fmt.Sprint("p", i), NoAddress, "subnet-full"))
	}
	d.pass(time.Second)
	for i := range burst {
		d.tell(newsOf(fmt.Sprint("p", i), NoAddress, "subnet-full"))
	}
	d.now = d.now.Add(2 * time.Minute)
	d.tell(newsOf("new", NoAddress, "subnet-full"))
	if got := d.pass(0); len(got) == 0 || got[0] != "NoAddress new 1" {
		t.Errorf("first writes = %q, want the new Event", got[:min(3, len(got))])
	}
}

// Names repeat, so that a node never has more Events than there are names. A taken name causes
// no delay.
func TestEventNames(t *testing.T) {
	d := newWriter()
	names := map[string]bool{}
	for i := range 3 * slots {
		d.tell(newsOf(fmt.Sprint("p", i), NoAddress, "growing"))
		d.now = d.now.Add(each)
		r, _, _ := d.next(d.now)
		if names[r.Name] = true; len(validation.IsDNS1123Subdomain(r.Name)) > 0 || i < slots && len(names) != i+1 {
			t.Fatalf("Event %d has the invalid or repeated name %s", i, r.Name)
		}
		d.done(r, nil, d.now)
	}
	if len(names) != slots {
		t.Errorf("%d names, want %d", len(names), slots)
	}
	for _, cut := range []string{"-", ".", "a"} {
		if name := eventName(strings.Repeat("n", maxInstance-1)+cut, 255); len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Errorf("invalid name %s for a node whose name is truncated", name)
		}
	}

	d.answer = fmt.Errorf("%w: already exists", ErrTaken)
	d.tell(newsOf("a", NoAddress, "growing"))
	if r, _, _ := d.next(d.now); d.done(r, d.answer, d.now) {
		t.Error("done() requests a pause after a taken name")
	}
	d.answer = nil
	d.want(t, each, "NoAddress a 1")
}

func TestNotes(t *testing.T) {
	for _, c := range []struct {
		news News
		want string
	}{
		{newsOf("a", NoAddress, "cooling"), `no address is free [cooling] They become free within the cooling period. (docs/troubleshoot/pods.md, "No address")`},
		{newsOf("a", NoAddress, "no-object"), `no address is free [no-object] (docs/troubleshoot/operator-mode.md, "A pod waits")`},
		{newsOf("a", NoAddress, "of-a-newer-operator"), `no address is free [of-a-newer-operator] (docs/troubleshoot/pods.md, "A pod stays in ContainerCreating")`},
		{
			News{Pod: pod("a"), IfName: "net1", Kind: NetworkFailed, Cause: "kernel", Message: "one\ntwo \x1b[31m three \xff"},
			`interface net1: one two [31m three [kernel] Check whether another program creates interfaces or routes of pods on the node. (docs/troubleshoot/pods.md, "Other failures of ADD and CHECK")`,
		},
	} {
		if got := troubleNote(c.news); got != c.want {
			t.Errorf("note of %+v =\n%s\nwant\n%s", c.news, got, c.want)
		}
	}
	for _, length := range []int{800, 1020, 1024, 5000} {
		n := newsOf("a", NoAddress, strings.Repeat("c", length))
		n.Message = strings.Repeat("ä", length)
		n.IfName = strings.Repeat("i", length)
		if got := troubleNote(n); len(got) > maxNote || !utf8.ValidString(got) || !strings.HasSuffix(got, `"A pod stays in ContainerCreating")`) {
			t.Errorf("note for a message of %d characters has %d bytes: %s", length, len(got), got)
		}
	}
}

// Problems that resolve by themselves cause no Warning.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		cause string
		want  bool
	}{
		{WaitsForAddress, "growing", false}, {WaitsForAddress, "subnet-full", true}, {WaitsForNetwork, "starting", false},
		{NoAddress, "growing", true}, {NetworkFailed, "kernel", true}, {Attached, "", false},
	} {
		if got := warns(c.kind, c.cause); got != c.want {
			t.Errorf("warns(%d, %s) = %v, want %v", c.kind, c.cause, got, c.want)
		}
	}
}
