package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/eni/fleet"
	"github.com/berthnet/berth/internal/operator/nodenetwork"
)

// State reads gauges when Prometheus asks: the totals of the nodes, and the
// subnets that they may use. Its functions must be quick.
type State struct {
	Totals  func() nodenetwork.Totals
	Subnets func() []fleet.Subnet
}

var (
	ipsDesc     = famIPs.Desc()
	enisDesc    = famENIs.Desc()
	nodesDesc   = famNodes.Desc()
	subnetsDesc = famSubnets.Desc()
)

// Describe implements prometheus.Collector.
func (s State) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{ipsDesc, enisDesc, nodesDesc, subnetsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s State) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), labels...)
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
