package podevents

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNotes(t *testing.T) {
	for _, c := range []struct {
		news News
		want string
	}{
		{newsOf("a", NoAddress, "cooling"), `no address is free [cooling] They are free within the cooling period, by themselves. (docs/troubleshoot.md, "No address")`},
		{newsOf("a", NoAddress, "no-object"), `no address is free [no-object] (docs/troubleshoot.md, "A pod waits")`},
		{newsOf("a", NoAddress, "of-a-newer-operator"), `no address is free [of-a-newer-operator] (docs/troubleshoot.md, "A pod stays in ContainerCreating")`},
		{
			News{Pod: pod("a"), IfName: "net1", Kind: NetworkFailed, Cause: "kernel", Message: "one\ntwo \x1b[31m three \xff"},
			`interface net1: one two [31m three [kernel] See whether another program makes interfaces or routes of pods on the node. (docs/troubleshoot.md, "The pod's network namespace, the kernel, the record")`,
		},
	} {
		if got := troubleNote(c.news); got != c.want {
			t.Errorf("of %+v the note is\n%s\nwant\n%s", c.news, got, c.want)
		}
	}
	for _, length := range []int{800, 1020, 1024, 5000} {
		n := newsOf("a", NoAddress, strings.Repeat("c", length))
		n.Message = strings.Repeat("ä", length)
		n.IfName = strings.Repeat("i", length)
		if got := troubleNote(n); len(got) > maxNote || !utf8.ValidString(got) || !strings.HasSuffix(got, `"A pod stays in ContainerCreating")`) {
			t.Errorf("of messages of %d characters the note has %d bytes: %s", length, len(got), got)
		}
	}
}

// Nobody is warned of what is over by itself.
func TestWhoIsWarned(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		cause string
		want  bool
	}{
		{WaitsForAddress, "growing", false}, {WaitsForAddress, "subnet-full", true}, {WaitsForNetwork, "starting", false},
		{NoAddress, "growing", true}, {NetworkFailed, "kernel", true}, {Attached, "", false},
	} {
		if got := warns(c.kind, c.cause); got != c.want {
			t.Errorf("kind %d for %s: warning %v", c.kind, c.cause, got)
		}
	}
}
