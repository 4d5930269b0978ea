package clientplan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
)

func served(i int, address string) v1alpha1.ServedClient {
	return v1alpha1.ServedClient{UID: fmt.Sprintf("uid-%04d", i), Pod: fmt.Sprintf("shop/web-%d", i), Addresses: []string{address}}
}

func numbered(taken func(string) bool) string {
	for n := 0; ; n++ {
		if name := strconv.Itoa(n); !taken(name) {
			return name
		}
	}
}

// flush is what the API server has once all that is due was written; it returns how many
// writes that took.
func flush(l *Slices, at map[string][]v1alpha1.ServedClient) int {
	l.Place(numbered)
	l.Merge()
	due := l.Due()
	for _, w := range due {
		if len(w.Clients) == 0 {
			delete(at, w.Name)
		} else {
			at[w.Name] = w.Clients
		}
		l.Written(w)
	}
	return len(due)
}

// A change of one client is a change of one slice, and where it is, it stays.
func TestSlicesIsStable(t *testing.T) {
	l, at := NewSlices(), map[string][]v1alpha1.ServedClient{}
	for i := range 250 {
		l.Set(served(i, "10.0.0.1"))
	}
	if n := flush(l, at); n != 3 || l.SliceCount() != 3 {
		t.Fatalf("%d writes of %d slices", n, l.SliceCount())
	}
	place := map[string]string{}
	for name, clients := range at {
		for _, c := range clients {
			place[c.UID] = name
		}
	}
	for what, do := range map[string]func() bool{
		"another address": func() bool { return l.Set(served(7, "10.0.0.2")) },
		"one goes":        func() bool { return l.Remove("uid-0008") },
		"one comes":       func() bool { return l.Set(served(900, "10.0.0.9")) },
	} {
		if !do() {
			t.Errorf("%s: nothing differs", what)
		}
		if n := flush(l, at); n != 1 {
			t.Errorf("%s: %d writes", what, n)
		}
	}
	for name, clients := range at {
		for _, c := range clients {
			if was := place[c.UID]; was != "" && was != name {
				t.Errorf("%s moved from %s to %s", c.UID, was, name)
			}
		}
	}
	if l.Set(served(7, "10.0.0.2")) || l.Remove("uid-0008") {
		t.Error("the same again differs")
	}
	if n := flush(l, at); n != 0 {
		t.Errorf("%d writes of nothing", n)
	}
}

// What is found is kept where it is: nothing is written if it is as it is to be.
func TestSlicesFindsWhatIsThere(t *testing.T) {
	at := map[string][]v1alpha1.ServedClient{"x": nil, "y": nil}
	fill := func() *Slices {
		l := NewSlices()
		for i := range 150 {
			l.Set(served(i, "10.0.0.1"))
		}
		return l
	}
	for i := range 150 {
		name := []string{"x", "y"}[i%2]
		at[name] = append(at[name], served(i, "10.0.0.1"))
	}
	found := func(l *Slices) {
		for _, name := range []string{"x", "y"} {
			l.Observe(name, at[name])
		}
	}
	l := fill()
	found(l)
	if n := flush(l, at); n != 0 {
		t.Errorf("%d writes", n)
	}
	l.Observe("x", at["x"])
	if n := flush(l, at); n != 0 {
		t.Errorf("%d writes after seeing one again", n)
	}
	l.Observe("y", slices.Concat(at["y"], at["x"][:1])) // somebody put it there twice
	if n := flush(l, at); n != 1 {
		t.Errorf("%d writes of one in two slices", n)
	}
	l.Observe("y", at["y"][1:])
	if n := flush(l, at); n != 1 || len(at["y"]) != 75 {
		t.Errorf("%d writes of a slice that lacks one", n)
	}
	l.Gone("x")
	if n := flush(l, at); n != 1 || len(at["x"]) != 75 {
		t.Errorf("%d writes of a slice that was deleted", n)
	}
	l = fill()
	for i := 0; i < 150; i += 2 {
		l.Remove(fmt.Sprintf("uid-%04d", i))
	}
	found(l)
	if n := flush(l, at); n != 1 || at["x"] != nil || l.SliceCount() != 1 {
		t.Errorf("%d writes, slices %d, of clients that went meanwhile", n, l.SliceCount())
	}
}

// Slices that lost most of their clients become few, by a write for each that takes clients and one for
// each that goes; a client is in one all the while.
func TestSlicesMerges(t *testing.T) {
	for name, tt := range map[string]struct {
		left           []int // clients of each slice
		slices, writes int
	}{
		"few of three":                   {[]int{10, 10, 10}, 1, 3},
		"few of many":                    {[]int{5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, 1, 10},
		"as many as leaves room":         {[]int{25, 50}, 1, 2},
		"more than leaves room":          {[]int{26, 50}, 2, 0},
		"a full one takes none":          {[]int{100, 3}, 2, 0},
		"the fullest that takes it":      {[]int{100, 60, 70, 5}, 3, 2},
		"some, each in two":              {[]int{40, 40, 30, 30}, 2, 4},
		"nobody is left in one":          {[]int{0, 60}, 1, 1},
		"one that has few of its own":    {[]int{1}, 1, 0},
		"those that go and one that not": {[]int{20, 20, 20, 70}, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			l, at := NewSlices(), map[string][]v1alpha1.ServedClient{}
			for s, n := range tt.left {
				for i := range n {
					at[strconv.Itoa(s)] = append(at[strconv.Itoa(s)], served(1000*s+i, "10.0.0.1"))
				}
				for _, c := range at[strconv.Itoa(s)] {
					l.Set(c)
				}
				l.Observe(strconv.Itoa(s), at[strconv.Itoa(s)])
			}
			l.Place(numbered)
			l.Merge()
			due := l.Due()
			if len(due) != tt.writes {
				t.Errorf("%d writes, want %d", len(due), tt.writes)
			}
			for _, w := range due {
				if len(w.Clients) == 0 {
					delete(at, w.Name)
				} else {
					at[w.Name] = w.Clients
				}
				there := map[string]bool{}
				for _, list := range at {
					for _, c := range list {
						there[c.UID] = true
					}
				}
				if len(there) != l.Len() {
					t.Fatalf("after slice %s was written %d clients of %d are in any", w.Name, len(there), l.Len())
				}
				l.Written(w)
			}
			if len(at) != tt.slices || l.SliceCount() != tt.slices {
				t.Errorf("%d slices at the API server, %d in the plan, want %d", len(at), l.SliceCount(), tt.slices)
			}
			if n := flush(l, at); n != 0 {
				t.Errorf("%d writes of nothing", n)
			}
		})
	}
}

// A write that failed is due again, and a change while it is under way too.
func TestSlicesWritesWhatWasNotWritten(t *testing.T) {
	l := NewSlices()
	l.Set(served(1, "10.0.0.1"))
	l.Place(numbered)
	first := l.Due()
	if again := l.Due(); len(again) != 1 || again[0].Name != first[0].Name {
		t.Errorf("due: %+v", again)
	}
	l.Set(served(1, "10.0.0.2"))
	l.Written(first[0])
	if again := l.Due(); len(again) != 1 || again[0].Clients[0].Addresses[0] != "10.0.0.2" {
		t.Errorf("due: %+v", again)
	}
	l.Written(l.Due()[0])
	l.Remove("uid-0001")
	going := l.Due()
	if len(going) != 1 || len(going[0].Clients) != 0 {
		t.Fatalf("due: %+v", going)
	}
	l.Set(served(2, "10.0.0.2")) // comes into the slice that is being deleted
	l.Place(numbered)
	l.Written(going[0])
	if again := l.Due(); len(again) != 1 || len(again[0].Clients) != 1 {
		t.Errorf("due: %+v", again)
	}
}

// Whatever happens, once all is written the slices have each client once and nobody else.
func TestSlicesAtRandom(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		l, at, want := NewSlices(), map[string][]v1alpha1.ServedClient{}, map[string]v1alpha1.ServedClient{}
		for range 400 {
			i := r.IntN(350)
			c := served(i, fmt.Sprintf("10.0.0.%d", r.IntN(3)))
			switch r.IntN(8) {
			case 0, 1, 2, 3, 4:
				l.Set(c)
				want[c.UID] = c
			case 5:
				l.Remove(c.UID)
				delete(want, c.UID)
			case 6:
				for name := range at { // somebody deletes one, or it is seen again
					if delete(at, name); r.IntN(2) == 0 {
						l.Gone(name)
					} else {
						l.Observe(name, nil)
					}
					break
				}
			case 7:
				flush(l, at)
			}
		}
		flush(l, at)
		got := map[string]int{}
		for name, clients := range at {
			if len(clients) > v1alpha1.SliceClients || len(clients) == 0 {
				t.Fatalf("seed %d: slice %s has %d", seed, name, len(clients))
			}
			for _, c := range clients {
				got[c.UID]++
				if !equal(c, want[c.UID]) {
					t.Fatalf("seed %d: got %+v, want %+v", seed, c, want[c.UID])
				}
			}
		}
		for uid := range want {
			if got[uid] != 1 {
				t.Fatalf("seed %d: %s is in %d slices", seed, uid, got[uid])
			}
		}
		if len(got) != len(want) || l.Len() != len(want) || l.SliceCount() != len(at) {
			t.Fatalf("seed %d: %d clients in %d slices, want %d in %d", seed, len(got), l.SliceCount(), len(want), len(at))
		}
	}
}
