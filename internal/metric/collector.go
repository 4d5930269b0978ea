package metric

import "github.com/prometheus/client_golang/prometheus"

// Collector has gauges of some families read on each scrape: read calls emit for each value, and
// must not block.
func Collector(read func(emit func(f Family, v float64, labels ...string)), families ...Family) prometheus.Collector {
	return collector{read, families}
}

type collector struct {
	read     func(emit func(f Family, v float64, labels ...string))
	families []Family
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.families {
		ch <- f.Desc()
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.read(func(f Family, v float64, labels ...string) { ch <- f.Value(v, labels...) })
}
