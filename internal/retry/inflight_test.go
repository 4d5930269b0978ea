package retry

import (
	"testing"
	"time"
)

func TestInFlight(t *testing.T) {
	now := time.Unix(1000, 0)
	f := NewInFlight[string, int]()
	start := func(k string, want bool) {
		t.Helper()
		if w, _ := f.Start(k, now); (w != nil) != want {
			t.Errorf("%s starts: %t, want %t", k, w != nil, want)
		}
	}
	all := func(string) bool { return true }
	start("a", true)
	start("a", false)
	start("b", true)
	if n, m := f.Running(nil), f.Running(func(k string) bool { return k == "b" }); n != 2 || m != 1 {
		t.Errorf("%d run, of them %d are b", n, m)
	}
	f.End("a").Until = now.Add(time.Second)
	if w, next := f.Start("a", now); w != nil || !next.Equal(now.Add(time.Second)) {
		t.Errorf("it starts again before %v: %v", next, w)
	}
	f.Retain(func(k string) bool { return k != "a" })
	start("a", true) // its backoff is forgotten

	// Running work is forgotten when it ends, unless it is wanted again by then.
	f.Of("b").Value = 7
	f.Retain(func(k string) bool { return k != "b" })
	start("b", false)
	f.Retain(all)
	f.End("b")
	if f.Of("b").Value != 7 {
		t.Error("work that is wanted again was forgotten")
	}
	f.Retain(func(string) bool { return false })
	f.End("a").Until = now.Add(time.Hour)
	start("a", true)
}
