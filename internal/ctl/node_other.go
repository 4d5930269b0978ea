//go:build !linux

package ctl

import (
	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/bundle"
)

// NodeParts is nil: nodes run Linux.
var NodeParts bundle.NodeParts

func onNode() []*cobra.Command { return nil }
