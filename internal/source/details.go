package source

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/node/introspect"
)

// Details are what several have to tell.
type Details []Detail

// Describe implements Detail.
func (d Details) Describe(doc *introspect.Document) {
	for _, one := range d {
		if one != nil {
			one.Describe(doc)
		}
	}
}

// Metrics implements Detail.
func (d Details) Metrics() (all []prometheus.Metric) {
	for _, one := range d {
		if one != nil {
			all = append(all, one.Metrics()...)
		}
	}
	return all
}
