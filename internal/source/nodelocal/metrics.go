package nodelocal

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

var famAddresses = metric.New("berth_node_local_addresses", "gauge",
	"Node-local addresses, by which pods of one IP family reach the world of the other: those in use, and those that cool. There are 1,024 of each family.", "family", "state")

// Reference is what node-local addresses add to the page of metrics.
var Reference = source.Reference{Families: []metric.Family{famAddresses}}

// counts are addresses in use and cooling, by family.
type counts [ipfamily.Number]struct{ used, cooling int }

// count counts. Cooling that has ended is over.
func (s *Source) count() (n counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs.Expire(s.clock.Now())
	for v := range s.addrs.Busied() {
		if of := &n[ipfamily.Of(v.Addr)]; v.Used {
			of.used++
		} else {
			of.cooling++
		}
	}
	return n
}

// Describe implements source.Detail.
func (counts) Describe(*introspect.Document) {}

// Metrics implements source.Detail.
func (n counts) Metrics() (all []prometheus.Metric) {
	for f, of := range n {
		family := string(ipfamily.Family(f).Alone())
		all = append(all,
			famAddresses.Value(float64(of.used), family, string(source.Used)),
			famAddresses.Value(float64(of.cooling), family, string(source.Cooling)))
	}
	return all
}
