package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab/control"
)

func newKill() *cobra.Command {
	c := &cobra.Command{
		Use:   "kill NODE | OPERATOR | kube-apiserver",
		Short: "Kill a node's berthd, an operator or the API server with SIGKILL",
		Long: `Kill a program with SIGKILL: a node's berthd by the node's name, an operator
(operator-1) or the API server (kube-apiserver) by its own. Pods that run keep
running; start brings the program back.`,
		Args: cobra.ExactArgs(1),
	}
	restart := c.Flags().Bool("restart", false, "start it again at once")
	return labCommand(c, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		what, err := lab.Kill(cmd.Context(), args[0], *restart)
		if err != nil {
			return err
		}
		how := "killed; start it again with vpclab start " + args[0]
		if *restart {
			how = "killed and started again"
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s was %s\n", what, how)
		return nil
	})
}

func newStart() *cobra.Command {
	return labCommand(&cobra.Command{
		Use:   "start NODE | OPERATOR | kube-apiserver",
		Short: "Start what was killed, and wait until it is ready",
		Args:  cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		what, err := lab.Start(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is ready\n", what)
		return nil
	})
}
