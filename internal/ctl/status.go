package ctl

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/introspect"
)

// errNotReady makes the program fail; all has been said already.
var errNotReady = errors.New("this node is not ready")

// nodeStatus is what `status -o json` prints.
type nodeStatus struct {
	Ready      bool                   `json:"ready"`
	Reason     string                 `json:"reason,omitempty"` // why not
	Node       string                 `json:"node"`
	InstanceID string                 `json:"instanceID"`
	Totals     introspect.Totals      `json:"totals"`
	ENIs       []introspect.ENI       `json:"enis"`
	Pools      []introspect.Pool      `json:"pools"`
	Blocks     []introspect.Block     `json:"blocks"`
	Conditions []introspect.Condition `json:"conditions"`
	LastError  string                 `json:"lastError,omitempty"`
}

func newStatus() *cobra.Command {
	var n node
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether this node takes pods, its ENIs or blocks, and its conditions",
		Long:  "Show whether this node takes pods, its ENIs or its pools and blocks, and its conditions. Fails when the node is not ready.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready, reason, err := n.readiness(cmd)
			if err != nil {
				return err
			}
			doc, err := n.document(cmd.Context())
			if err != nil {
				return err
			}
			s := nodeStatus{ready, reason, doc.Node, doc.InstanceID, doc.Totals, doc.ENIs, doc.Pools, doc.Blocks, doc.Conditions, doc.LastError}
			if out == jsonFmt {
				err = writeJSON(cmd.OutOrStdout(), s)
			} else {
				err = writeStatus(cmd, s, doc)
			}
			if err == nil && !ready {
				return errNotReady
			}
			return err
		},
	}
	n.register(cmd)
	out.register(cmd)
	return cmd
}

// readiness asks the probe that Kubernetes asks.
func (n *node) readiness(cmd *cobra.Command) (ready bool, reason string, err error) {
	body, code, err := n.get(cmd.Context(), n.address, "/readyz")
	if err != nil {
		return false, "", explain(err, n.address, "--address")
	}
	if code == http.StatusOK {
		return true, "", nil
	}
	return false, strings.TrimSpace(string(body)), nil
}

func writeStatus(cmd *cobra.Command, s nodeStatus, doc introspect.Document) error {
	p := &printer{w: cmd.OutOrStdout()}
	verdict := "ready"
	if !s.Ready {
		verdict = "NOT READY: " + s.Reason
	}
	p.printf("Node %s: %s\n%s\n", nodeName(doc), verdict, totals(doc))
	if ofPools(doc) {
		p.supply(doc)
	} else {
		p.section("ENIs", eniGrid(s.ENIs), "No ENI is known.")
	}
	g := grid{{"CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"}}
	for _, c := range s.Conditions {
		g.add(c.Type, c.Status, age(c.Since, doc.Time), c.Reason, c.Message)
	}
	p.section("Conditions", g, "No condition is known.")
	p.lastTrouble(doc)
	return p.err
}

func eniGrid(enis []introspect.ENI) grid {
	g := grid{{"ENI", "INDEX", "PRIMARY", "SUBNET", "MAC", "USED", "CAPACITY", "PREFIXES", "READY"}}
	for _, e := range enis {
		primary := ""
		if e.Primary {
			primary = "yes"
		}
		g.add(e.ID, strconv.Itoa(e.DeviceIndex), primary, e.Subnet, e.MAC,
			strconv.Itoa(e.Used), strconv.Itoa(e.Capacity), strconv.Itoa(e.Prefixes), yesOrWhy(e.Ready, e.Reason))
	}
	return g
}

func yesOrWhy(yes bool, why string) string {
	if yes {
		return "yes"
	}
	return "no: " + why
}
