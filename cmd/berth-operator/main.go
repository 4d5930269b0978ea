// Command berth-operator manages the ENIs of all nodes of a cluster: it gives each node, through its NodeNetwork object,
// the addresses that its pods need.
package main

import (
	"io"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/operator"
	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/internal/program"
)

//go:generate sh -c "go run . config-reference > ../../docs/reference/operator-configuration.md"
//go:generate sh -c "go run . metrics-reference > ../../docs/reference/operator-metrics.md"

func main() {
	planner.Child()
	berthOperator.Main()
}

var berthOperator = program.Program[config.Operator]{
	Name:   "berth-operator",
	Short:  "Assign ENIs and addresses of the VPC to a cluster's nodes",
	Long:   "berth-operator is Berth's operator: it manages the ENIs of all nodes of a cluster, so that nodes need no EC2 permissions.",
	Loader: config.NewOperatorLoader,
	Run:    operator.Run,
	Pages: map[string]func(io.Writer) error{
		"config-reference":  config.WriteOperatorReference,
		"metrics-reference": operator.WriteMetricsReference,
	},
}
