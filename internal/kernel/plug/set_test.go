package plug

import (
	"context"
	"errors"
	"testing"
)

// recorder records its calls.
type recorder struct {
	Plugger
	calls []string
	found []Found
	err   error
}

func (r *recorder) Plug(_ context.Context, w Want) (Done, error) {
	r.calls = append(r.calls, "plug "+w.PortID)
	return Done{HostIfName: string(w.Kind)}, nil
}

func (r *recorder) Unplug(_ context.Context, ref Ref) error {
	r.calls = append(r.calls, "unplug "+ref.PortID)
	return nil
}

func (r *recorder) List(context.Context) ([]Found, error) { return r.found, r.err }

func TestSet(t *testing.T) {
	ctx, broken := t.Context(), errors.New("broken")
	a := &recorder{found: []Found{{Ref: Ref{PortID: "b", Kind: OVS}}}, err: broken}
	b := &recorder{found: []Found{{Ref: Ref{PortID: "a", Kind: Netns}}}}
	s := Set{OVS: a, Netns: b}
	if d, err := s.Plug(ctx, Want{Ref: Ref{PortID: "x", Kind: Netns}}); err != nil || d.HostIfName != string(Netns) {
		t.Errorf("Plug() = %+v, %v, want the result of the kind's Plugger", d, err)
	}
	if err := s.Unplug(ctx, Ref{PortID: "y", Kind: OVS}); err != nil {
		t.Error(err)
	}
	if len(a.calls) != 1 || a.calls[0] != "unplug y" || len(b.calls) != 1 || b.calls[0] != "plug x" {
		t.Errorf("calls = %q and %q, want one for each Plugger", a.calls, b.calls)
	}
	for _, err := range []error{
		s.Check(ctx, Want{}), s.Await(ctx, Want{}), s.Remove(ctx, Found{}),
		func() error { _, err := s.Plug(ctx, Want{Ref: Ref{Kind: "vhostuser"}}); return err }(),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("call for a kind that is not plugged: error = %v, want ErrInvalid", err)
		}
	}
	if err := s.Unplug(ctx, Ref{Kind: OVSHybrid}); err != nil {
		t.Errorf("Unplug() of a kind that is not plugged on this node: %v", err)
	}
	list, err := s.List(ctx)
	if !errors.Is(err, broken) || len(list) != 2 || list[0].PortID != "a" {
		t.Errorf("List() = %+v, %v, want two ports and the error of one Plugger", list, err)
	}
}
