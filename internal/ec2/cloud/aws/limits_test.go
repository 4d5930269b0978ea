package aws

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

const describeTypes = "DescribeInstanceTypes"

func typeElement(name, head, network string) string {
	return "<instanceTypeSet><item><instanceType>" + name + "</instanceType>" + head + "<networkInfo>" + network + "</networkInfo></item></instanceTypeSet>"
}

func typeInfo(name, head, network string) answer {
	return ok(describeTypes, typeElement(name, head, network))
}

func TestLimits(t *testing.T) {
	network := `<maximumNetworkInterfaces>4</maximumNetworkInterfaces><ipv4AddressesPerInterface>15</ipv4AddressesPerInterface>
<ipv6AddressesPerInterface>15</ipv6AddressesPerInterface><ipv6Supported>true</ipv6Supported>`
	cards := `<maximumNetworkInterfaces>60</maximumNetworkInterfaces><ipv4AddressesPerInterface>50</ipv4AddressesPerInterface><ipv6Supported>false</ipv6Supported>
<networkCards><item><networkCardIndex>1</networkCardIndex><maximumNetworkInterfaces>14</maximumNetworkInterfaces></item>
<item><networkCardIndex>0</networkCardIndex><maximumNetworkInterfaces>15</maximumNetworkInterfaces></item></networkCards>`
	for _, tt := range []struct {
		name, head, network string
		want                cloud.Limits
	}{
		{"nitro", "<hypervisor>nitro</hypervisor>", network, cloud.Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true}},
		{"xen", "<hypervisor>xen</hypervisor>", network, cloud.Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15}},
		{"metal", "<bareMetal>true</bareMetal>", network, cloud.Limits{MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true}},
		{"several cards", "<hypervisor>nitro</hypervisor>", cards, cloud.Limits{MaxENIs: 15, IPv4PerENI: 50, Prefixes: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, map[string][]answer{describeTypes: {typeInfo("x.large", tt.head, tt.network)}})
			c := client(t, s)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if got, err := c.Limits(t.Context(), "x.large"); err != nil || got != tt.want {
						t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
					}
				})
			}
			wg.Wait()
			check.Equal(t, len(s.calls), 1, "requests")
		})
	}
}

// TestLimitsFallback: the table answers while EC2 cannot be asked, and EC2 is
// asked again later; a type that EC2 does not know is an error.
func TestLimitsFallback(t *testing.T) {
	s := serve(t, map[string][]answer{describeTypes: {
		refusal(403, "UnauthorizedOperation", "no"),
		typeInfo("m5.large", "<hypervisor>nitro</hypervisor>", "<maximumNetworkInterfaces>7</maximumNetworkInterfaces><ipv4AddressesPerInterface>8</ipv4AddressesPerInterface>"),
	}})
	clk := newHasty()
	c := client(t, s, func(o *setup) { o.Pace.Clock = clk })
	for range 2 {
		got, err := c.Limits(t.Context(), "m5.large")
		if want := (cloud.Limits{MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: true}); err != nil || got != want {
			t.Fatalf("got %+v, %v; want the table's %+v", got, err, want)
		}
	}
	check.Equal(t, len(s.calls), 1, "requests within the time of the fallback")
	clk.advance(10 * time.Minute)
	if got, err := c.Limits(t.Context(), "m5.large"); err != nil || got.MaxENIs != 7 {
		t.Errorf("after the time of the fallback: %+v, %v", got, err)
	}

	unlisted := client(t, serve(t, map[string][]answer{describeTypes: {ok(describeTypes, "<instanceTypeSet/>")}}))
	if got, err := unlisted.Limits(t.Context(), "m5.large"); err != nil || got.MaxENIs != 3 {
		t.Errorf("a type that EC2 does not list and the table knows: %+v, %v", got, err)
	}

	for name, a := range map[string]answer{
		"type unknown to EC2":       ok(describeTypes, "<instanceTypeSet/>"),
		"type unknown to the table": refusal(403, "UnauthorizedOperation", "no"),
	} {
		c := client(t, serve(t, map[string][]answer{describeTypes: {a}}))
		got, err := c.Limits(t.Context(), "no.such")
		if err == nil || cloud.ClassOf(err) == cloud.Unknown || name == "type unknown to EC2" && !strings.Contains(err.Error(), "does not exist in this region") ||
			!strings.Contains(err.Error(), `"no.such" either: allow ec2:DescribeInstanceTypes`) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}
