package networkpolicy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/policytable"
	"github.com/berthnet/berth/internal/policy"
)

// denials are refused packets that a test sends.
type denials chan []policytable.Denied

func (d denials) Receive() ([]policytable.Denied, error) {
	if list, ok := <-d; ok {
		return list, nil
	}
	return nil, os.ErrClosed
}

func (d denials) Close() error {
	close(d)
	return nil
}

func denied(d policy.Direction, from, to string, protocol uint8, port uint16) policytable.Denied {
	return policytable.Denied{Direction: d, Flow: policy.Flow{Source: netip.MustParseAddr(from), Destination: netip.MustParseAddr(to), Protocol: protocol, Port: port}, SourcePort: 40000}
}

// withoutTime logs to out.
func withoutTime(out io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// A denied connection is one line with pods and policies. One that tries again is not logged again, and a flood is limited.
func TestDeniedConnectionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		from := make(denials)
		e := New(Options{
			Kernel: &kernel{}, Denials: from, Dir: t.TempDir(), Clock: clock.Real{},
			Log: withoutTime(&out),
		})
		no := &policy.Policy{Ref: policy.Ref{Name: "no-dns"}, Tier: policy.Admin}
		no.Rules[policy.Egress] = []policy.Rule{{Action: policy.Deny, Name: "dns", AnyPeer: true, Ports: []policy.Ports{{Protocol: 17, First: 53, Last: 53}}}}
		alone := &policy.Policy{Ref: policy.Ref{Namespace: "default", Name: "alone"}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
		e.state.Take(&policy.Update{
			Version: 1, Whole: true,
			Pods:     map[policy.PodName]*policy.Selected{{Namespace: "default", Name: "a"}: {UID: "uid-of-a", Policies: []policy.Ref{no.Ref, alone.Ref}}, {Namespace: "default", Name: "b"}: {UID: "uid-of-b"}},
			Policies: map[policy.Ref]*policy.Policy{no.Ref: no, alone.Ref: alone},
		})
		e.Restore(map[string]Pod{"a": running("a", "10.0.0.1"), "b": running("b", "10.0.0.2"), "c": running("c", "10.0.0.3")})
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.insides.denied.run(from)
		}()
		for _, c := range []struct {
			name string
			d    policytable.Denied
			want string
		}{
			{"isolated", denied(policy.Ingress, "10.0.0.2", "10.0.0.1", 6, 80), `direction=Ingress source=10.0.0.2 destination=10.0.0.1 protocol=TCP port=80 sourcePort=40000 sourcePod=default/b destinationPod=default/a policies="[NetworkPolicy default/alone]"`},
			{"the same again", denied(policy.Ingress, "10.0.0.2", "10.0.0.1", 6, 80), ""},
			{"by a rule", denied(policy.Egress, "10.0.0.1", "192.0.2.9", 17, 53), `direction=Egress source=10.0.0.1 destination=192.0.2.9 protocol=UDP port=53 sourcePort=40000 sourcePod=default/a policies="[ClusterNetworkPolicy no-dns rule dns]"`},
			{"changed since", denied(policy.Egress, "10.0.0.2", "192.0.2.9", 1, 0), `direction=Egress source=10.0.0.2 destination=192.0.2.9 protocol=ICMP sourcePod=default/b`},
			{"unknown to the operator", denied(policy.Ingress, "192.0.2.9", "10.0.0.3", 132, 9), `direction=Ingress source=192.0.2.9 destination=10.0.0.3 protocol=SCTP port=9 sourcePort=40000 destinationPod=default/c policies="[NetworkPolicy default/(unknown pod)]"`},
		} {
			out.Reset()
			from <- []policytable.Denied{c.d}
			synctest.Wait()
			got := strings.TrimSpace(strings.TrimPrefix(out.String(), `level=INFO msg="network policies denied a connection"`))
			if got != c.want {
				t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
			}
		}
		time.Sleep(denialRepeat) //nolint:forbidigo // in a bubble
		out.Reset()
		var flood []policytable.Denied
		for port := range uint16(100) {
			flood = append(flood, denied(policy.Ingress, "10.0.0.2", "10.0.0.1", 6, port+1))
		}
		from <- flood
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n != denialRate {
			t.Errorf("%d lines of 100 connections at once, want %d", n, denialRate)
		}
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		from <- []policytable.Denied{denied(policy.Ingress, "10.0.0.2", "10.0.0.1", 6, 80), denied(policy.Ingress, "10.0.0.2", "10.0.0.1", 6, 800)}
		synctest.Wait()
		if want := fmt.Sprint("notLogged=", 100-denialRate); strings.Count(out.String(), "\n") != denialRate+1 || !strings.Contains(out.String(), want) {
			t.Errorf("the line after a flood lacks %q:\n%s", want, out.String())
		}
		must(t, from.Close())
		<-done
	})
}

// late is a context whose functions (context.AfterFunc) begin late: those who wait for Done continue first, as may happen on a busy machine.
type late struct{ context.Context }

func (l late) AfterFunc(f func()) (stop func() bool) {
	stopped := make(chan struct{})
	go func() {
		<-l.Done()
		select {
		case <-stopped:
		case <-time.After(time.Second):
			f()
		}
	}()
	return sync.OnceValue(func() bool {
		close(stopped)
		return true
	})
}

// Value hides the context in it, so that package context calls AfterFunc.
func (late) Value(any) any { return nil }

// Run ends the log's goroutine also if that of context.AfterFunc has not begun when Run returns.
func TestRunEndsTheLogOfDeniedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{
			Kernel: &kernel{}, Denials: make(denials), Dir: t.TempDir(), Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler),
			Dial: func(ctx context.Context) (Leader, error) {
				<-ctx.Done()
				return Leader{}, ctx.Err()
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(late{ctx}) }()
		synctest.Wait()
		cancel()
		must(t, <-ended)
	})
}

// What a pod's own network namespace reports may be forged there: lines are about that pod only, whoever else has its address, are few, and
// take nothing from those of the node. It is read at a bounded rate.
func TestLogsOfPodsAreNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		e := New(Options{Kernel: &kernel{}, Dir: t.TempDir(), Clock: clock.Real{}, Log: withoutTime(&out)})
		pods := map[string]Pod{"a": running("a", "10.0.0.1"), "twin": running("twin", "10.0.0.1"), "b": running("b", "10.0.0.2")}
		for _, name := range []string{"a", "twin"} {
			p := pods[name]
			p.Inside = &Inside{Netns: name, Links: []string{"eth0"}, Only: true}
			pods[name] = p
		}
		e.Restore(pods)
		ofPod, ofNode := make(denials), make(denials)
		var readers sync.WaitGroup
		readers.Go(func() { e.insides.denied.inside("a").run(ofPod) })
		readers.Go(func() { e.insides.denied.run(ofNode) })
		lines := func(from denials, list ...policytable.Denied) int {
			out.Reset()
			from <- list
			synctest.Wait()
			return strings.Count(out.String(), "\n")
		}
		if n := lines(ofPod, denied(policy.Egress, "10.0.0.1", "10.0.0.2", 6, 80)); n != 1 || !strings.Contains(out.String(), "sourcePod=default/a destinationPod=default/b") {
			t.Errorf("a denied connection of the pod: %s", &out)
		}
		if n := lines(ofPod, denied(policy.Egress, "10.0.0.2", "10.0.0.1", 6, 80), denied(policy.Ingress, "10.0.0.1", "10.0.0.2", 6, 80)); n != 0 {
			t.Errorf("the pod reports about another: %s", &out)
		}
		var flood []policytable.Denied
		for port := range uint16(2 * insideMemory) {
			flood = append(flood, denied(policy.Ingress, "10.0.0.2", "10.0.0.1", 6, port+1))
		}
		if n := lines(ofPod, flood...); n != denialRate-1 {
			t.Errorf("%d lines about a flood, want %d", n, denialRate-1)
		}
		began := time.Now()
		for range 10 {
			ofPod <- flood[:1]
		}
		if took := time.Since(began); took < 10*insidePause {
			t.Errorf("reports were read every %s", took/10)
		}
		if n := lines(ofNode, denied(policy.Ingress, "10.0.0.1", "10.0.0.2", 6, 80)); n != 1 {
			t.Errorf("%d lines of the node after the flood, want 1", n)
		}
		must(t, ofPod.Close())
		must(t, ofNode.Close())
		readers.Wait()
	})
}
