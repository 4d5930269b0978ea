package crash

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestPercentilesAreCloseToExactOnes(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	var s spread
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(dice.ExpFloat64() * float64(300*time.Millisecond))
		s.add(d)
		all = append(all, d)
	}
	slices.Sort(all)
	for _, p := range []float64{10, 50, 90, 99, 99.9} {
		exact, got := all[int(p/100*float64(len(all)))-1], s.percentile(p)
		if got < exact || float64(got) > 1.05*float64(exact) {
			t.Errorf("p%v is %v, want %v and up to 5 %% more", p, got, exact)
		}
	}
	if got, want := s.percentile(100), all[len(all)-1]; got != want || s.longest != want {
		t.Errorf("p100 is %v and the longest %v, want %v", got, s.longest, want)
	}
}

func TestPercentilesAtTheEdges(t *testing.T) {
	for _, c := range []struct {
		name string
		add  []time.Duration
		p50  time.Duration
	}{
		{"none", nil, 0},
		{"nothing takes no time", []time.Duration{0}, 0},
		{"one", []time.Duration{time.Second}, time.Second},
		{"shorter than a class", []time.Duration{time.Microsecond}, time.Microsecond},
		{"longer than all classes", []time.Duration{1000 * time.Hour}, 1000 * time.Hour},
	} {
		var s spread
		for _, d := range c.add {
			s.add(d)
		}
		if got := s.percentile(50); got != c.p50 {
			t.Errorf("%s: p50 is %v, want %v", c.name, got, c.p50)
		}
	}
}
