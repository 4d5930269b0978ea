package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/nodenetwork"
)

// State reads gauges when Prometheus asks: the totals of the nodes, and the
// subnets that they may use; the use of address pools. Its functions must be
// quick; nil: the operator does not work for that.
type State struct {
	Totals  func() nodenetwork.Totals
	Subnets func() []cloud.Subnet
	Pools   func() []addresspool.Usage
}

var (
	ipsDesc     = famIPs.Desc()
	enisDesc    = famENIs.Desc()
	nodesDesc   = famNodes.Desc()
	subnetsDesc = famSubnets.Desc()

	poolBlocksDesc    = famPoolBlocks.Desc()
	poolAddressesDesc = famPoolAddresses.Desc()
	poolWaitingDesc   = famPoolWaiting.Desc()
)

// Describe implements prometheus.Collector.
func (s State) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{ipsDesc, enisDesc, nodesDesc, subnetsDesc, poolBlocksDesc, poolAddressesDesc, poolWaitingDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s State) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), labels...)
	}
	if s.Pools != nil {
		for _, u := range s.Pools() {
			for desc, n := range map[*prometheus.Desc]v1alpha1.PoolCounts{poolBlocksDesc: u.Blocks, poolAddressesDesc: u.Addresses} {
				gauge(desc, int(n.Total), u.Pool, "max")
				gauge(desc, int(n.Allocated), u.Pool, "allocated")
				gauge(desc, int(n.Free), u.Pool, "free")
			}
			gauge(poolWaitingDesc, u.Waiting, u.Pool)
		}
	}
	if s.Totals == nil {
		return
	}
	t := s.Totals()
	gauge(ipsDesc, t.Used, "used")
	gauge(ipsDesc, t.Available, "available")
	gauge(ipsDesc, t.Needed, "needed")
	gauge(enisDesc, t.ENIs)
	gauge(nodesDesc, t.Nodes, "total")
	gauge(nodesDesc, t.InDeficit, "in-deficit")
	gauge(nodesDesc, t.AtCapacity, "at-capacity")
	for _, sn := range s.Subnets() {
		gauge(subnetsDesc, sn.Free, sn.ID, sn.Zone)
	}
}
