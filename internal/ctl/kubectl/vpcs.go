package kubectl

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
)

// VPCs is the output of `kubectl berth vpcs -o json`.
type VPCs struct {
	VPCs   []VPC    `json:"vpcs"` // by name
	Unread []string `json:"unread"`
}

// VPC is one VPC, with its NICs.
type VPC struct {
	Name       string                 `json:"name"`
	Provider   string                 `json:"provider"`
	Network    string                 `json:"network"`
	NetworkID  string                 `json:"networkID,omitempty"`
	ProjectID  string                 `json:"projectID,omitempty"`
	Ready      string                 `json:"ready"` // True, False or Unknown
	Reason     string                 `json:"reason,omitempty"`
	Conditions []introspect.Condition `json:"conditions"`
	NICs       int                    `json:"nics"`
	Phases     map[string]int         `json:"phases"` // NICs by phase
	Subnets    []VPCSubnet            `json:"subnets"`
	Troubled   []NIC                  `json:"troubled"` // NICs that need attention, by namespace and name
	Trouble    []string               `json:"trouble"`  // problems, one sentence each
}

// VPCSubnet is a subnet of a VPC.
type VPCSubnet struct {
	ID       string `json:"id"`
	Name     string `json:"name,omitempty"`
	CIDR     string `json:"cidr"`
	IPv6CIDR string `json:"ipv6CIDR,omitempty"` // besides, of a subnet with both families
	Gateway  string `json:"gateway,omitempty"`
	Waiting  int    `json:"waiting"` // NICs that wait because the subnet is full
}

func newVPCs(p *program) *cobra.Command {
	var out output
	var details bool
	cmd := &cobra.Command{
		Use:   "vpcs [VPC...]",
		Short: "Show VPCs, and NICs with problems",
		Long: `Show all VPCs, or those named: whether they are ready, their NICs by phase, full subnets,
and the NICs that need attention, with the reason and what to do. For named VPCs, or with
-o wide, also conditions and subnets.

--details compares each NIC with its pod, and so finds NICs on another node than their pod,
and NICs whose pod is gone. Exits with 2 on a problem.`,
		ValidArgsFunction: completion{p}.others(vpcsPath),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := p.vpcList(cmd, args, details)
			if err != nil {
				return err
			}
			err = out.show(cmd, list, func(pr *view.Printer, wide bool) { writeVPCs(pr, list, p, wide, wide || len(args) > 0) })
			if err == nil && (len(list.Unread) > 0 || slices.ContainsFunc(list.VPCs, func(v VPC) bool { return len(v.Trouble) > 0 })) {
				return errUnwell
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&details, "details", false, "compare each NIC with its pod")
	out.register(cmd)
	return cmd
}

func (p *program) vpcList(cmd *cobra.Command, args []string, details bool) (VPCs, error) {
	ctx := cmd.Context()
	a, err := p.connect()
	if err != nil {
		return VPCs{}, err
	}
	if err := a.reach(ctx); err != nil {
		return VPCs{}, err
	}
	o := objects{now: p.Now(), vpcs: a.vpcs(ctx), nics: a.nics(ctx, podnicsPath, nil), daemons: p.daemonPods(ctx, a, ""), operator: operatorObjects{pods: p.operatorPods(ctx, a)}}
	if details {
		o.pods = a.podsOfNICs(ctx, o.nics)
	}
	o.unread = a.unread
	rows := vpcRows(o)
	list := VPCs{VPCs: rows, Unread: append([]string{}, a.unread...)}
	if len(args) > 0 {
		list.VPCs = []VPC{}
	}
	for _, name := range args {
		i := slices.IndexFunc(rows, func(v VPC) bool { return v.Name == name })
		if i < 0 {
			return VPCs{}, missing(a, "VPCs", fmt.Errorf("there is no VPC %q", name))
		}
		list.VPCs = append(list.VPCs, rows[i])
	}
	return list, ctx.Err()
}

// vpcRows returns all VPCs, including those that NICs name and that do not exist, by name.
func vpcRows(o objects) []VPC {
	rows, around := map[string]*VPC{}, o.around()
	for i := range o.vpcs {
		row := vpcOf(&o.vpcs[i])
		rows[row.Name] = &row
	}
	for i := range o.nics {
		n := &o.nics[i]
		row := rows[n.Spec.VPC]
		if row == nil {
			row = &VPC{Name: n.Spec.VPC, Ready: string(metav1.ConditionUnknown), Conditions: []introspect.Condition{}, Phases: map[string]int{}, Subnets: []VPCSubnet{}, Troubled: []NIC{}, Trouble: []string{}}
			if !isUnread(o.unread, "VPCs") {
				row.Trouble = append(row.Trouble, "the VPC does not exist, and NICs name it")
			}
			rows[row.Name] = row
		}
		is := nicOf(n, around.judge(n))
		row.NICs++
		row.Phases[is.Phase]++
		row.full(n)
		if !is.Diagnosis.OK {
			row.Troubled = append(row.Troubled, is)
		}
	}
	out := []VPC{}
	for _, row := range rows {
		slices.SortFunc(row.Troubled, func(a, b NIC) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		row.Trouble = append(row.Trouble, told(row.Troubled, "NICs")...)
		out = append(out, *row)
	}
	slices.SortFunc(out, func(a, b VPC) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func vpcOf(v *v1alpha1.VPC) VPC {
	row := VPC{
		Name: v.Name, Provider: string(v.Spec.Provider), Network: v.Spec.Network, NetworkID: v.Status.NetworkID, ProjectID: v.Status.ProjectID,
		Ready: string(metav1.ConditionUnknown), Conditions: conditionsOf(v.Status.Conditions), Phases: map[string]int{}, Subnets: []VPCSubnet{}, Troubled: []NIC{}, Trouble: []string{},
	}
	for _, s := range v.Status.Subnets {
		row.Subnets = append(row.Subnets, VPCSubnet{ID: s.ID, Name: s.Name, CIDR: s.CIDR, IPv6CIDR: s.IPv6CIDR, Gateway: s.Gateway})
	}
	ready := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		row.Trouble = append(row.Trouble, "berth-operator has not reported on it")
	case ready.Status != metav1.ConditionTrue:
		row.Ready, row.Reason = string(ready.Status), ready.Reason
		row.Trouble = append(row.Trouble, fmt.Sprintf("it is not ready (%s): %s: %s", ready.Reason, ready.Message, diagnose.Remedy(ready.Reason)))
	default:
		row.Ready, row.Reason = string(ready.Status), ready.Reason
	}
	return row
}

// full counts a NIC that waits for a full subnet. If the provider does not name the subnet,
// it counts for every subnet that the NIC may get an address from.
func (row *VPC) full(o *v1alpha1.PodNIC) {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionPortReady)
	if c == nil || c.Reason != "SubnetFull" || c.Status != metav1.ConditionFalse {
		return
	}
	for i := range row.Subnets {
		s := &row.Subnets[i]
		wanted := slices.ContainsFunc(o.Spec.Addresses, func(a v1alpha1.NICAddress) bool {
			return a.IP == "" && (a.Subnet == s.ID || a.Subnet == s.Name && s.Name != "")
		})
		if wanted || strings.Contains(c.Message, s.ID) {
			s.Waiting++
		}
	}
}

func writeVPCs(p *view.Printer, list VPCs, prog *program, wide, whole bool) {
	p.Table(vpcGrid(list.VPCs, wide), "No VPC exists.")
	for _, v := range list.VPCs {
		for _, t := range v.Trouble {
			p.Printf("\n%s %s\n", view.Toned{Text: "! " + v.Name + ":", Tone: view.Bad}, t)
		}
	}
	for _, v := range list.VPCs {
		if whole {
			view.Conditions(p, "Conditions of "+v.Name, v.Conditions, prog.Now())
			g := view.NewGrid("SUBNET", "NAME", "CIDR", "GATEWAY", "NICS THAT WAIT")
			for _, s := range v.Subnets {
				g.Add(s.ID, s.Name, strings.TrimSpace(s.CIDR+" "+s.IPv6CIDR), s.Gateway, strconv.Itoa(s.Waiting))
			}
			p.Section("Subnets of "+v.Name, g, "No subnet is known.")
		}
		if len(v.Troubled) > 0 {
			shown, more := few(v.Troubled, wide)
			p.Section("NICs in "+v.Name+" that need attention", nicGrid(shown, false, wide), "")
			explain(p, shown)
			if more > 0 {
				p.Printf("%s: -o wide lists them.\n", view.Count(more, "more NIC"))
			}
		}
	}
	unread(p, list.Unread)
}

func vpcGrid(vpcs []VPC, wide bool) *view.Grid {
	head := []string{"VPC", "NETWORK", "NICS", "ACTIVE", "WAITING", "FAILED", "FULL SUBNETS", "READY"}
	if wide {
		head = append(head, "PROVIDER", "NETWORK ID", "PROJECT")
	}
	g := view.NewGrid(head...)
	for _, v := range vpcs {
		state := yesNo(v.Ready)
		if v.Reason != "" && v.Ready != string(metav1.ConditionTrue) {
			state += " (" + v.Reason + ")"
		}
		waiting, full := 0, 0
		for _, phase := range []v1alpha1.PodNICPhase{v1alpha1.PhasePending, v1alpha1.PhaseCreated, v1alpha1.PhaseBound, v1alpha1.PhaseReleasing} {
			waiting += v.Phases[string(phase)]
		}
		for _, s := range v.Subnets {
			if s.Waiting > 0 {
				full++
			}
		}
		row := []string{
			v.Name, v.Network, strconv.Itoa(v.NICs), strconv.Itoa(v.Phases[string(v1alpha1.PhaseActive)]), strconv.Itoa(waiting),
			strconv.Itoa(v.Phases[string(v1alpha1.PhaseFailed)]), strconv.Itoa(full), state,
		}
		if wide {
			row = append(row, v.Provider, v.NetworkID, v.ProjectID)
		}
		g.Add(row...)
		if v.Ready != string(metav1.ConditionTrue) {
			g.Tint(7, view.Bad)
		}
	}
	return g
}
