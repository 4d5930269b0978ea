package kubectl

import (
	"cmp"
	"fmt"
	"slices"
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
			return out.finish(cmd, list, len(list.Unread) > 0 || slices.ContainsFunc(list.VPCs, VPC.unwell), func(pr *view.Printer, wide bool) {
				writeVPCs(pr, list, p, wide, wide || len(args) > 0)
			})
		},
	}
	cmd.Flags().BoolVar(&details, "details", false, "compare each NIC with its pod")
	out.register(cmd)
	return cmd
}

func (p *program) vpcList(cmd *cobra.Command, args []string, details bool) (VPCs, error) {
	ctx := cmd.Context()
	a, err := p.reach(ctx)
	if err != nil {
		return VPCs{}, err
	}
	o := objects{now: p.Now(), vpcs: a.vpcs(ctx), nics: a.nics(ctx, podnicsPath, nil), daemons: p.daemonPods(ctx, a, ""), operator: operatorObjects{pods: p.operatorPods(ctx, a)}}
	if details {
		o.pods = a.podsOfNICs(ctx, o.nics)
	}
	o.unread = a.unread
	rows, err := choose(a, "VPC", "VPCs", vpcRows(o), args, func(v VPC) string { return v.Name })
	return VPCs{VPCs: rows, Unread: a.unread.texts()}, cmp.Or(err, ctx.Err())
}

func (row VPC) unwell() bool { return len(row.Trouble) > 0 }

// vpcRows returns all VPCs, including those that NICs name and that do not exist, by name.
func vpcRows(o objects) []VPC {
	rows := map[string]*VPC{}
	for i := range o.vpcs {
		row := vpcOf(&o.vpcs[i])
		rows[row.Name] = &row
	}
	for i := range o.nics {
		n := &o.nics[i]
		row := rows[n.Spec.VPC]
		if row == nil {
			row = newVPC(n.Spec.VPC)
			if o.unread.why("VPCs") == "" {
				row.Trouble = append(row.Trouble, "the VPC does not exist, and NICs name it")
			}
			rows[row.Name] = row
		}
		row.full(n)
	}
	for _, n := range o.nicRows() {
		row := rows[n.VPC]
		row.NICs++
		row.Phases[n.Phase]++
		if !n.Diagnosis.OK {
			row.Troubled = append(row.Troubled, n)
		}
	}
	out := []VPC{}
	for _, row := range rows {
		row.Trouble = append(row.Trouble, summary(row.Troubled, "NICs")...)
		out = append(out, *row)
	}
	slices.SortFunc(out, func(a, b VPC) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// newVPC returns a row whose lists are empty, not null.
func newVPC(name string) *VPC {
	return &VPC{Name: name, Ready: string(metav1.ConditionUnknown), Conditions: []introspect.Condition{}, Phases: map[string]int{}, Subnets: []VPCSubnet{}, Troubled: []NIC{}, Trouble: []string{}}
}

func vpcOf(v *v1alpha1.VPC) VPC {
	row := *newVPC(v.Name)
	row.Provider, row.Network, row.NetworkID, row.ProjectID = string(v.Spec.Provider), v.Spec.Network, v.Status.NetworkID, v.Status.ProjectID
	row.Conditions = conditionsOf(v.Status.Conditions)
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
			problem(p, v.Name, t)
		}
	}
	for _, v := range list.VPCs {
		if whole {
			view.Conditions(p, "Conditions of "+v.Name, v.Conditions, prog.Now())
			p.Section("Subnets of "+v.Name, view.GridOf(v.Subnets, func(s VPCSubnet) []any {
				return []any{s.ID, s.Name, strings.TrimSpace(s.CIDR + " " + s.IPv6CIDR), s.Gateway, s.Waiting}
			}, "SUBNET", "NAME", "CIDR", "GATEWAY", "NICS THAT WAIT"), "No subnet is known.")
		}
		writeAttention(p, "NICs in "+v.Name, "NIC", v.Troubled, wide, func(rows []NIC) *view.Grid { return nicGrid(rows, false, wide) })
	}
	notRead(p, list.Unread)
}

func vpcGrid(vpcs []VPC, wide bool) *view.Grid {
	head := []string{"VPC", "NETWORK", "NICS", "ACTIVE", "WAITING", "FAILED", "FULL SUBNETS", "READY"}
	if wide {
		head = append(head, "PROVIDER", "NETWORK ID", "PROJECT")
	}
	g := view.NewGrid(head...)
	for _, v := range vpcs {
		waiting, full := 0, 0
		for _, phase := range []v1alpha1.PodNICPhase{v1alpha1.PhasePending, v1alpha1.PhaseCreated, v1alpha1.PhaseBound, v1alpha1.PhaseReleasing} {
			waiting += v.Phases[string(phase)]
		}
		for _, s := range v.Subnets {
			if s.Waiting > 0 {
				full++
			}
		}
		row := []any{v.Name, v.Network, v.NICs, v.Phases[string(v1alpha1.PhaseActive)], waiting, v.Phases[string(v1alpha1.PhaseFailed)], full, stateOf(v.Ready, v.Reason)}
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
