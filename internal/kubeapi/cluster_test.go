package kubeapi

import (
	"errors"
	"slices"
	"testing"
)

// Of a kind that several follow, each hears everything.
func TestClusterTellsAllWhoFollow(t *testing.T) {
	var heard []string
	note := func(who string) Handler[*Metadata] {
		return Handler[*Metadata]{
			Put:     func(o *Metadata) { heard = append(heard, who+" put "+o.Name) },
			Gone:    func(o *Metadata) { heard = append(heard, who+" gone "+o.Name) },
			All:     func(list []*Metadata) { heard = append(heard, who+" all "+list[0].Name) },
			Outcome: func(err error) { heard = append(heard, who+" "+err.Error()) },
		}
	}
	c := NewCluster(nil)
	c.Follow(Namespaces, note("a"), "x")
	c.Follow(Namespaces, note("b"), "y")
	c.Follow(NodeNamed("n"), note("c"))
	f := c.feeds[Namespaces]
	if len(c.feeds) != 2 || !slices.Equal(f.annotations, []string{"x", "y"}) {
		t.Errorf("%d watches, of namespaces with %v", len(c.feeds), f.annotations)
	}
	o := &Metadata{}
	o.Name = "ns"
	h := f.all()
	h.Put(o)
	h.Gone(o)
	h.All([]*Metadata{o})
	h.Outcome(errors.New("away"))
	want := []string{"a put ns", "b put ns", "a gone ns", "b gone ns", "a all ns", "b all ns", "a away", "b away"}
	if !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}
