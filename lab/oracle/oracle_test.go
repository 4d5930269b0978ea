package oracle_test

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/test/harness"
)

// The oracle reports leaked state and damaged records.
func TestInvariantsSeeWhatIsWrong(t *testing.T) {
	l := harness.Raise(t, lab.Options{Nodes: 1, NoDaemons: true})
	n := l.Nodes()[0]
	loose, err := l.Cloud.ENIs.Create(vpc.CreateRequest{SubnetID: l.Snapshot().Subnets[0].ID})
	harness.OK(t, err)
	harness.OK(t, os.WriteFile(n.StateDir()+"/attachment-x.json", []byte("{"), 0o600))
	harness.OK(t, ns.Do(n.Netns, litter))
	errs := errors.Join(oracle.Check(t.Context(), l)...)
	for _, want := range []string{
		loose.ID, "attachment-x.json", "introspection",
		"link bthleaked is leaked", "route to 10.0.3.99 is leaked", "table of ENI 5 is leaked", "no ENI 6 is attached",
	} {
		if errs == nil || !strings.Contains(errs.Error(), want) {
			t.Errorf("%q is not in: %v", want, errs)
		}
	}
}

// litter creates leaked state in the calling thread's network namespace.
func litter() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = datapath.LinkPrefix + "leaked"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
		return err
	}
	l, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	for table, dst := range map[int]string{datapath.PodTable: "10.0.3.99/32", datapath.UplinkTableBase + 5: "10.0.0.1/32"} {
		_, to, _ := net.ParseCIDR(dst)
		r := &netlink.Route{Dst: to, LinkIndex: l.Attrs().Index, Table: table, Protocol: datapath.Protocol, Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteAdd(r); err != nil {
			return err
		}
	}
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = netlink.FAMILY_V4, datapath.RuleUplink, datapath.UplinkTableBase+6, datapath.Protocol
	return netlink.RuleAdd(r)
}
