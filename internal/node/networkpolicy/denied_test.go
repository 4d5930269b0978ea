package networkpolicy

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
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

// A denied connection is one line with pods and policies. One that tries again is not logged again, and a flood is limited.
func TestDeniedConnectionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		from := make(denials)
		e := New(Options{
			Kernel: &kernel{}, Denials: from, Dir: t.TempDir(), Clock: clock.Real{},
			Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			}})),
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
