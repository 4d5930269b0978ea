package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab/control"
)

func newFault() *cobra.Command {
	c := &cobra.Command{
		Use:     "fault KIND [ACTION] [VALUE] | list | clear [KIND]",
		Short:   "Inject faults into the cloud",
		Long:    faultHelp(),
		Example: faultExamples(),
		Args:    cobra.MinimumNArgs(1),
	}
	count := c.Flags().Int("count", 0, "how many calls it affects, for error, lost-reply and lost-request (default: all until cleared)")
	return labCommand(c, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		return fault(cmd, lab, args, *count)
	})
}

func fault(cmd *cobra.Command, ctl *control.Client, args []string, count int) error {
	out := cmd.OutOrStdout()
	switch args[0] {
	case "list":
		list, err := ctl.Faults(cmd.Context())
		if err != nil {
			return err
		}
		if len(list) == 0 {
			fmt.Fprintln(out, "No faults are in force.")
		}
		for _, f := range list {
			fmt.Fprintln(out, f)
		}
		return nil
	case "clear":
		kind := strings.Join(args[1:], " ")
		if _, err := control.KindNamed(kind); kind != "" && err != nil {
			return err
		}
		n, err := ctl.ClearFaults(cmd.Context(), kind)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d faults cleared\n", n)
		return nil
	}
	if len(args) == 2 && args[1] == "off" { // outage off
		_, err := ctl.ClearFaults(cmd.Context(), args[0])
		return err
	}
	if len(args) == 2 && args[1] == "on" {
		args = args[:1]
	}
	k, err := control.KindNamed(args[0])
	if err != nil {
		return err
	}
	r, err := k.Request(args[1:], count)
	if err != nil {
		return err
	}
	return ctl.AddFault(cmd.Context(), r)
}

func faultHelp() string {
	var b strings.Builder
	b.WriteString("Inject faults into the cloud. A fault stays until it is cleared, or has affected --count calls.\nACTION is an EC2 action or a pattern, such as 'Describe*'.\n\n")
	for _, k := range control.Kinds {
		fmt.Fprintf(&b, "  %-28s %s\n", strings.TrimSpace(k.Name+" "+k.Args), k.Doc)
	}
	b.WriteString("  list                         show the faults in force\n  clear [KIND]                 clear all faults, or those of a kind; outage off clears an outage\n")
	return b.String()
}

func faultExamples() string {
	var lines []string
	for _, k := range control.Kinds {
		lines = append(lines, "  vpclab fault "+k.Example)
	}
	return strings.Join(lines, "\n")
}
