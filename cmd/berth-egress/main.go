// Command berth-egress is the gateway of an Egress: it decapsulates clients' packets and forwards them from its pod's
// own address.
package main

import (
	"io"

	"github.com/berthnet/berth/internal/berthegress"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/program"
)

//go:generate sh -c "go run . config-reference > ../../docs/reference/egress-configuration.md"
//go:generate sh -c "go run . metrics-reference > ../../docs/reference/egress-metrics.md"

func main() { berthEgress.Main() }

var berthEgress = program.Program[config.Gateway]{
	Name:    "berth-egress",
	Short:   "Run the gateway of an Egress",
	Long:    "berth-egress is the program in the pods of an Egress: it decapsulates clients' packets, and forwards them from the pod's own address.",
	Loader:  config.NewGatewayLoader,
	Run:     berthegress.Run,
	Patient: true,
	Pages: map[string]func(io.Writer) error{
		"config-reference":  config.WriteGatewayReference,
		"metrics-reference": berthegress.WriteMetricsReference,
	},
}
