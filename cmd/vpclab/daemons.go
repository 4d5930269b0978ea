package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/vpclab/control"
)

func newKill() *cobra.Command {
	var dir string
	var restart bool
	c := &cobra.Command{
		Use:   "kill NODE",
		Short: "Kill a node's berthd with SIGKILL",
		Long:  "Kill a node's berthd with SIGKILL. Pods that run keep running; start brings it back.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := absDir(dir)
			if err != nil {
				return err
			}
			if err := control.Dial(dir).Kill(cmd.Context(), args[0], restart); err != nil {
				return err
			}
			what := "killed; start it again with vpclab start " + args[0]
			if restart {
				what = "killed and started again"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "berthd of %s was %s\n", args[0], what)
			return nil
		},
	}
	dirFlag(c, &dir)
	c.Flags().BoolVar(&restart, "restart", false, "start it again at once")
	return c
}

func newStart() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "start NODE",
		Short: "Start a node's berthd that was killed, and wait until it is ready",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := absDir(dir)
			if err != nil {
				return err
			}
			if err := control.Dial(dir).Start(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "berthd of %s is ready\n", args[0])
			return nil
		},
	}
	dirFlag(c, &dir)
	return c
}
