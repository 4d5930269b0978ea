package plugtest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
)

// Plugged plugs a port and checks it.
func Plugged(t testing.TB, p plug.Plugger, w plug.Want) plug.Done {
	t.Helper()
	d, err := p.Plug(Bounded(t), w)
	Must(t, err)
	Must(t, p.Check(Bounded(t), w))
	return d
}

// Waits are the calls that wait for another program.
var Waits = map[string]func(context.Context, plug.Plugger, plug.Want) error{
	"Expect": func(ctx context.Context, p plug.Plugger, w plug.Want) error { return p.Expect(ctx, w) },
	"Plug":   func(ctx context.Context, p plug.Plugger, w plug.Want) error { _, err := p.Plug(ctx, w); return err },
}

// Differences are those of a link of a pod from a port's interface.
func Differences(t testing.TB, pod *podif.Namespace, name string, i plug.Interface) (found plug.Differences) {
	t.Helper()
	Must(t, pod.Check(name, i, &found))
	return found
}

// Refused expects that Plug fails with an error that has some texts.
func Refused(t testing.TB, p plug.Plugger, w plug.Want, want error, says ...string) {
	t.Helper()
	_, err := p.Plug(Bounded(t), w)
	expect(t, "Plug", err, errors.Is(err, want), want, says)
}

// Differs expects that Check returns a Mismatch that has some texts.
func Differs(t testing.TB, p plug.Plugger, w plug.Want, says ...string) {
	t.Helper()
	err := p.Check(Bounded(t), w)
	_, ok := errors.AsType[*plug.Mismatch](err)
	expect(t, "Check", err, ok, "a Mismatch", says)
}

func expect(t testing.TB, call string, err error, ok bool, want any, says []string) {
	t.Helper()
	for _, s := range says {
		ok = ok && strings.Contains(err.Error(), s)
	}
	if !ok {
		t.Errorf("%s: %v, want %v that says %q", call, err, want, says)
	}
}

// Dies interrupts Plug at a failpoint.
func Dies(t testing.TB, point string, p plug.Plugger, w plug.Want) {
	t.Helper()
	if !Crash(t, point+"=error", func() error { _, err := p.Plug(Bounded(t), w); return err }) {
		t.Fatalf("Plug does not pass %s", point)
	}
}

// Crash interrupts a call at a failpoint, and reports whether the call passed it.
func Crash(t testing.TB, spec string, call func() error) bool {
	t.Helper()
	restore, err := failpoint.Set(spec)
	Must(t, err)
	err = call()
	restore()
	if err != nil && !errors.Is(err, failpoint.ErrHit) {
		t.Fatal(err)
	}
	return err != nil
}
