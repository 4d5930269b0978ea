package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/network/fabric"
)

func newStatus() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, ENIs, addresses, pods, dropped packets and faults",
		Args:  cobra.NoArgs,
	}
	format := c.Flags().StringP("output", "o", "table", "`format`: table or json")
	return labCommand(c, func(cmd *cobra.Command, lab *control.Client, _ []string) error {
		if *format != "table" && *format != "json" {
			return fmt.Errorf("--output %q: want table or json", *format)
		}
		ctx, cancel := contextFor(cmd, 30*time.Second)
		defer cancel()
		s, err := lab.Status(ctx)
		if err != nil {
			return err
		}
		if *format == "json" {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(s)
		}
		return printStatus(cmd.OutOrStdout(), s)
	})
}

// printStatus writes what a person wants to see at a glance.
func printStatus(out io.Writer, s lab.Status) error {
	if s.Mode == lab.PoolMode || s.Mode == lab.PortMode {
		fmt.Fprintf(out, "Lab %s in %s: a data centre, outside host %s\n", s.ID, s.Dir, s.Internet)
	} else {
		fmt.Fprintf(out, "Lab %s in %s: VPC %s, internet host %s, on-premises host %s\n", s.ID, s.Dir, s.VPC, s.Internet, s.OnPrem)
	}
	if s.VPCIPv6 != "" {
		fmt.Fprintf(out, "IPv6: VPC %s, internet host %s, on-premises host %s; pods have addresses of %s\n", s.VPCIPv6, fabric.InternetHost6, fabric.OnPremHost6, families(s.Families))
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if s.Kubeconfig != "" {
		fmt.Fprintf(out, "Kubernetes API: export KUBECONFIG=%s\n", s.Kubeconfig)
		operatorTable(w, s)
	}
	switch s.Mode {
	case lab.PoolMode:
		poolTables(w, s)
	case lab.PortMode:
		portTables(w, s)
	default:
		eniTables(w, s)
	}
	if s.Mode != lab.PortMode && len(s.VPCs) > 0 {
		vpcTable(w, s)
		nicTable(w, s)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(s.Gateway) > 0 {
		fmt.Fprintf(out, "\nDropped at the internet gateway: %s\n", drops(s.Gateway))
	}
	for _, f := range s.Faults {
		fmt.Fprintf(out, "\nFault: %s\n", f)
	}
	printTroubles(out, s)
	if s.Trouble != "" {
		fmt.Fprintf(out, "\nError of the lab itself: %s\n", s.Trouble)
	}
	return nil
}

// families names those of a set.
func families(s ipfamily.Set) string {
	var names []string
	for _, f := range s.Families() {
		names = append(names, f.String())
	}
	return strings.Join(names, " and ")
}

// printTroubles lists what is not ready, or has conditions that report a problem.
func printTroubles(out io.Writer, s lab.Status) {
	of := func(what, why, log string) {
		if why != "" {
			fmt.Fprintf(out, "\n%s: %s\n", what, why)
		}
		if why != "" && log != "" {
			fmt.Fprintf(out, "Its log is %s\n", log)
		}
	}
	for _, n := range s.Nodes {
		of(n.Name+" is not ready", n.Why, n.Log)
		if n.Network != nil {
			of("NodeNetwork "+n.Name, n.Network.Why, "")
		}
	}
	for _, p := range s.Pools {
		of("AddressPool "+p.Name, p.Why, "")
	}
	for _, v := range s.VPCs {
		of("VPC "+v.Name, v.Why, "")
	}
	for _, n := range s.NICs {
		of("PodNIC "+n.Namespace+"/"+n.Name, n.Why, "")
	}
	for _, o := range s.Operators {
		of(o.Name+" is not ready", o.Why, o.Log)
	}
}

// operatorTable shows the operators, of which a lab with kubelets has none: there they
// are pods.
func operatorTable(w io.Writer, s lab.Status) {
	if len(s.Operators) == 0 {
		return
	}
	fmt.Fprintln(w, "\nOPERATOR\tSTATE\tPID\tSTARTS")
	for _, o := range s.Operators {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", o.Name, o.State, o.PID, o.Starts)
	}
}

// eniTables show nodes and pods whose addresses are of ENIs.
func eniTables(w io.Writer, s lab.Status) {
	if s.Mode == lab.OperatorMode {
		fmt.Fprintln(w, "\nNODENETWORK\tAVAILABLE\tUSED\tNEEDED\tRELEASING\tREADY")
	}
	for _, n := range s.Nodes {
		if o := n.Network; o != nil {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\n", n.Name, o.Available, o.Used, o.Needed, o.Releasing, o.Ready)
		}
	}
	fmt.Fprintln(w, "\nNODE\tINSTANCE\tTYPE\tADDRESS\tBERTHD\tPID\tSTARTS\tENIS\tPODS")
	for _, n := range s.Nodes {
		var own []netip.Addr
		for _, a := range []netip.Addr{n.Address, n.IPv6} {
			if a.IsValid() {
				own = append(own, a)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", n.Name, n.InstanceID, n.Type, join(own), n.Daemon, n.PID, n.Starts, len(n.ENIs), len(n.Pods))
	}
	fmt.Fprintln(w, "\nENI\tNODE\tCARD\tINDEX\tSTATUS\tSUBNET\tPRIMARY\tADDRESSES\tDROPS")
	for _, n := range s.Nodes {
		for _, e := range n.ENIs {
			eniRow(w, e, n.Name)
			for _, b := range e.Branches {
				eniRow(w, b, n.Name)
			}
		}
	}
	for _, e := range s.Loose {
		eniRow(w, e, "-")
	}
	fmt.Fprintln(w)
	podTable(w, s, "ENI\tINDEX", func(p lab.PodStatus) string { return fmt.Sprintf("%s\t%d", p.ENI, p.DeviceIndex) })
}

// poolTables show nodes and pods whose addresses are of pools.
func poolTables(w io.Writer, s lab.Status) {
	fmt.Fprintln(w, "\nPOOL\tBLOCKS\tALLOCATED\tFREE\tREADY")
	for _, p := range s.Pools {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", p.Name, p.Blocks, p.Allocated, p.Free, p.Ready)
	}
	nodeTable(w, s)
	fmt.Fprintln(w, "\nBLOCK\tNODE\tIPV4\tIPV6\tANNOUNCED")
	for _, b := range s.Blocks {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%t\n", b.Name, b.Node, b.IPv4, b.IPv6, b.Announced)
	}
	fmt.Fprintln(w)
	podTable(w, s, "BLOCK", func(p lab.PodStatus) string { return p.Block })
}

// portTables show VPCs, nodes, NICs and pods.
func portTables(w io.Writer, s lab.Status) {
	vpcTable(w, s)
	nodeTable(w, s)
	nicTable(w, s)
	fmt.Fprintln(w)
	podTable(w, s, "", func(lab.PodStatus) string { return "" })
}

// nodeTable shows nodes without ENIs.
func nodeTable(w io.Writer, s lab.Status) {
	fmt.Fprintln(w, "\nNODE\tADDRESS\tBERTHD\tPID\tSTARTS\tPODS")
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", n.Name, n.Address, n.Daemon, n.PID, n.Starts, len(n.Pods))
	}
}

// podTable shows pods, with further columns.
func podTable(w io.Writer, s lab.Status, columns string, cells func(lab.PodStatus) string) {
	fmt.Fprintf(w, "POD\tNAMESPACE\tADDRESSES\t%s\n", columns)
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\n", n.Name, p.Name, p.Namespace, join(p.Addresses), cells(p))
		}
	}
}

func vpcTable(w io.Writer, s lab.Status) {
	fmt.Fprintln(w, "\nVPC\tNETWORK\tSUBNETS\tNICS\tREADY")
	for _, v := range s.VPCs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", v.Name, v.Network, v.Subnets, v.NICs, v.Ready)
	}
}

func nicTable(w io.Writer, s lab.Status) {
	fmt.Fprintln(w, "\nPODNIC\tVPC\tPHASE\tPOD\tNODE\tINTERFACE\tADDRESSES\tPORT\tSTATUS")
	for _, n := range s.NICs {
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Namespace, n.Name, n.VPC, n.Phase, n.Pod, n.Node, n.Interface, strings.Join(n.Addresses, ","), n.Port, n.State)
	}
}

func eniRow(w io.Writer, e lab.ENIStatus, node string) {
	addrs := fmt.Sprint(len(e.Secondary))
	for _, more := range []struct {
		n    int
		what string
	}{{len(e.Prefixes), "× /28"}, {len(e.IPv6), "IPv6"}, {len(e.IPv6Prefixes), "× /80"}} {
		if more.n > 0 {
			addrs += fmt.Sprintf(" + %d %s", more.n, more.what)
		}
	}
	primary := "-" // of type efa-only
	if e.Primary.IsValid() {
		primary = e.Primary.String()
	}
	card, index := fmt.Sprint(e.NetworkCard), fmt.Sprint(e.DeviceIndex)
	if e.VLAN != 0 { // a branch, below its trunk
		card, index = "-", fmt.Sprintf("vlan %d", e.VLAN)
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.ID, node, card, index, e.Status, e.Subnet, primary, addrs, drops(e.Drops))
}

func drops(d fabric.Drops) string {
	if len(d) == 0 {
		return "-"
	}
	var parts []string
	for _, c := range slices.Sorted(maps.Keys(d)) {
		parts = append(parts, fmt.Sprintf("%s %d", c, d[c]))
	}
	return strings.Join(parts, ", ")
}

func join(addrs []netip.Addr) string {
	var parts []string
	for _, a := range addrs {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, ",")
}
