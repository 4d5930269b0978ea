// Command berthd is the node daemon: it gives the node's pods addresses of the VPC, and owns their attachments and
// kernel state.
package main

import (
	"io"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/node/berthd"
	"github.com/berthnet/berth/internal/program"
)

//go:generate sh -c "go run . config-reference > ../../docs/reference/configuration.md"
//go:generate sh -c "go run . metrics-reference > ../../docs/reference/metrics.md"

func main() { command.Main() }

var command = program.Program[config.Config]{
	Name:   "berthd",
	Short:  "Assign addresses of the VPC to this node's pods",
	Long:   "berthd is Berth's node daemon.",
	Loader: config.NewLoader,
	Run:    berthd.Run,
	Pages: map[string]func(io.Writer) error{
		"config-reference":  config.WriteReference,
		"metrics-reference": berthd.WriteMetricsReference,
	},
}
