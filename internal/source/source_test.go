package source_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
)

func TestStateOfAnAddress(t *testing.T) {
	type view = ipam.AddressView[attachment.Key]
	key := attachment.Key{ContainerID: "c"}
	for want, v := range map[source.State]view{
		source.Used: {Used: true, Key: key, Withdrawn: true}, source.Cooling: {Cooling: true, Withdrawn: true},
		source.Withdrawn: {Withdrawn: true, Ready: true}, source.Warm: {Ready: true}, source.NotReady: {},
	} {
		v.Addr, v.Since = netip.MustParseAddr("10.0.0.1"), time.Unix(1, 0)
		got := source.Info(v, introspect.Origin{ENI: "eni-1"})
		if got.State != want || got.Addr != v.Addr || !got.Since.Equal(v.Since) || got.ENI != "eni-1" || (got.Key != nil) != v.Used {
			t.Errorf("%+v is %+v, want %s", v, got, want)
		}
		if v.Used && *got.Key != key {
			t.Errorf("it is of %v", got.Key)
		}
	}
}

func TestReasonOf(t *testing.T) {
	for in, want := range map[string]string{"SubnetFull": "subnet-full", "ENILimit": "eni-limit", "AtCapacity": "at-capacity", "Throttled": "throttled", "": "degraded"} {
		check.Equal(t, source.ReasonOf(in), want, "ReasonOf(%q)", in)
	}
}
