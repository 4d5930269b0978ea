package aws

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/cloud"
)

func TestRouteTables(t *testing.T) {
	const op = "DescribeRouteTables"
	table := func(id, associations string) string {
		return "<routeTableSet><item><routeTableId>" + id + "</routeTableId><associationSet>" + associations + "</associationSet></item></routeTableSet>"
	}
	associated := "<associationState><state>associated</state></associationState>"
	s := serve(t, map[string][]answer{op: {
		ok(op, table("rtb-1", "<item><main>true</main>"+associated+"</item>")+"<nextToken>a</nextToken>"),
		ok(op, table("rtb-2", "<item><main>false</main><subnetId>subnet-1</subnetId>"+associated+"</item>"+
			"<item><subnetId>subnet-2</subnetId><associationState><state>disassociated</state></associationState></item>"+
			"<item><gatewayId>igw-1</gatewayId>"+associated+"</item>")),
		ok(op, table("", "")),
	}})
	c := client(t, s)
	got, err := c.RouteTables(t.Context(), "vpc-1")
	want := []cloud.RouteTable{{ID: "rtb-1", Main: true}, {ID: "rtb-2", Subnets: []string{"subnet-1"}}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if r := s.sent(op)[1]; r.Get("Filter.1.Name") != "vpc-id" || r.Get("Filter.1.Value.1") != "vpc-1" || r.Get("NextToken") != "a" {
		t.Errorf("asked for %v", r)
	}
	if _, err := c.RouteTables(t.Context(), "vpc-1"); cloud.ClassOf(err) != cloud.Transient {
		t.Errorf("a table without an ID: %v", err)
	}
}
