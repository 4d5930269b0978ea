package egressgateway

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestValidate(t *testing.T) {
	good := func() Setup {
		return Setup{
			Link: "eth0", Addrs: []netip.Addr{addr("10.1.0.9"), addr("fd01::9")}, Port: 5555,
			Destinations: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
			Clients:      []Client{{"a", []netip.Addr{addr("10.1.0.1"), addr("fd01::1")}}},
		}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Setup){
		`Link "a/b"`:                  func(s *Setup) { s.Link = "a/b" },
		"Port 0":                      func(s *Setup) { s.Port = 0 },
		"Addrs: expected":             func(s *Setup) { s.Addrs = nil },
		"one address of a family":     func(s *Setup) { s.Addrs = append(s.Addrs, addr("10.1.0.10")) },
		"Addrs: 127.0.0.1":            func(s *Setup) { s.Addrs[0] = addr("127.0.0.1") },
		"Destinations: 10.0.0.1/8":    func(s *Setup) { s.Destinations[0] = netip.MustParsePrefix("10.0.0.1/8") },
		`Clients: UID ""`:             func(s *Setup) { s.Clients[0].UID = "" },
		"Clients: 224.0.0.1":          func(s *Setup) { s.Clients[0].Addrs[0] = addr("224.0.0.1") },
		"of client a and of client b": func(s *Setup) { s.Clients = append(s.Clients, Client{"b", s.Clients[0].Addrs[:1]}) },
	} {
		s := good()
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want %s", err, want)
		}
	}
}

// TestMembers: an address of two clients is left out, and nothing else.
func TestMembers(t *testing.T) {
	got, err := members([]Client{
		{"a", []netip.Addr{addr("10.1.0.1"), addr("fd01::1")}}, {"b", []netip.Addr{addr("10.1.0.1"), addr("10.1.0.2")}},
		{"c", []netip.Addr{addr("10.1.0.1")}}, {"d", []netip.Addr{addr("10.1.0.3")}}, {"d", []netip.Addr{addr("10.1.0.3")}},
	})
	if !errors.Is(err, ErrLeftOut) {
		t.Errorf("err = %v", err)
	}
	if want := "map[10.1.0.2:b 10.1.0.3:d fd01::1:a]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestCompare(t *testing.T) {
	c := compare(
		map[netip.Addr]string{addr("10.1.0.1"): "stays", addr("10.1.0.2"): "before", addr("10.1.0.3"): "goes"},
		map[netip.Addr]string{addr("10.1.0.1"): "stays", addr("10.1.0.2"): "after", addr("10.1.0.4"): "comes"})
	if got, want := fmt.Sprint(c.gone, c.added), "[10.1.0.2 10.1.0.3] map[10.1.0.2:after 10.1.0.4:comes]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestTunnels(t *testing.T) {
	s := Setup{Link: "eth0", Addrs: []netip.Addr{addr("10.1.0.9"), addr("fd01::9")}, Port: 5555}
	list, err := s.tunnels(1500)
	if err != nil || len(list) != 2 || list[0].MTU != 1472 || list[1].MTU != 1452 || !list[0].SourcePortAuto {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := s.tunnels(1327); err == nil || !strings.Contains(err.Error(), "at least 1328") {
		t.Errorf("err = %v", err)
	}
}

// TestStatistic: the statistics of two processors.
func TestStatistic(t *testing.T) {
	const text = `entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart
00000027  00000000 00000000 00000000 00000003 00000000 00000000 00000000 00000000 00000000 0000000a 00000000 00000000  00000000 00000000 00000000 00000000
00000027  00000000 00000000 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000002 00000000 00000000  00000000 00000000 00000000 00000000
`
	if n, err := statistic(text, "drop"); err != nil || n != 12 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := statistic(text, "dropped"); err == nil {
		t.Error("a column that is not there")
	}
	if _, err := statistic("a b\n1\n", "b"); err == nil {
		t.Error("a line that is too short")
	}
}

// TestOpen: which connections of clients count as open.
func TestOpen(t *testing.T) {
	k := &Kernel{known: &known{members: map[netip.Addr]string{addr("10.1.0.1"): "a"}}}
	flow := func(from string, tcp int) *netlink.ConntrackFlow {
		f := &netlink.ConntrackFlow{Forward: netlink.IPTuple{SrcIP: addr(from).AsSlice()}}
		if tcp >= 0 {
			f.ProtoInfo = &netlink.ProtoInfoTCP{State: uint8(tcp)}
		}
		return f
	}
	for _, tt := range []struct {
		flow *netlink.ConntrackFlow
		want bool
	}{
		{flow("10.1.0.1", -1), true}, {flow("10.1.0.1", nl.TCP_CONNTRACK_ESTABLISHED), true}, {flow("10.1.0.1", nl.TCP_CONNTRACK_FIN_WAIT), true},
		{flow("10.1.0.1", nl.TCP_CONNTRACK_TIME_WAIT), false}, {flow("10.1.0.9", -1), false},
	} {
		if got := k.isOpen(tt.flow); got != tt.want {
			t.Errorf("%v %v: %t", tt.flow.Forward.SrcIP, tt.flow.ProtoInfo, got)
		}
	}
}
