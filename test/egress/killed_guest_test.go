//go:build guest && e2e

package egress

import (
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness"
)

// TestConnectionsOutliveBerthEgress kills all of an Egress's berth-egress with -9, under traffic: connections and datagrams
// go on through the kernel, the next processes take over, and not one new connection fails.
func TestConnectionsOutliveBerthEgress(t *testing.T) {
	s := tell(t, "killed")
	by := s.gateways(2)
	p := s.client(s.lab.Nodes()[0], "talker")
	s.reaches(p, by)
	tcp, udp := s.talk(p, "tcp", 8, 20*time.Millisecond), s.talk(p, "udp", 4, 20*time.Millisecond)
	flood := s.pour(p, 100*time.Millisecond, answerWithin)
	tcp.flow(s, 100)
	for _, g := range s.lab.Gateways(s.key) {
		harness.OK(t, g.Kill())
	}
	tcp.flow(s, 200)
	s.gateways(2)
	for _, g := range s.lab.Gateways(s.key) {
		harness.Eventually(t, harness.Patience, g.Name+" runs again", func() error { return harness.Equal("starts", g.Starts(), 2) })
	}
	tcp.flow(s, 200)
	udp.flow(s, 100)
	flood.poured(s, 10)
	flood.end()
	flood.none(s)
	if err := tcp.end(); err != nil {
		t.Errorf("connections: %v", err)
	}
	if err := udp.end(); err != nil {
		t.Errorf("datagrams: %v", err)
	}
	t.Logf("%d new connections, the slowest took %s", flood.begun, flood.worst)
}
