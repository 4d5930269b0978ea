package ctl

import (
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/introspect"
)

// errNotReady makes the program fail after it has printed the status.
var errNotReady = errors.New("this node is not ready")

// nodeStatus is the output of `status -o json`.
type nodeStatus struct {
	Ready      bool                   `json:"ready"`
	Reason     string                 `json:"reason,omitempty"` // why the node is not ready
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
		Short: "Show this node's readiness, ENIs or blocks, and conditions",
		Long:  "Show this node's readiness, its ENIs or its pools and blocks, and its conditions. Fails if the node is not ready.",
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
				err = view.WriteJSON(cmd.OutOrStdout(), s)
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

// readiness queries the endpoint of the kubelet's readiness probe.
func (n *node) readiness(cmd *cobra.Command) (ready bool, reason string, err error) {
	body, code, err := n.get(cmd.Context(), "/readyz")
	if err != nil {
		return false, "", n.explain(err)
	}
	if code == http.StatusOK {
		return true, "", nil
	}
	return false, strings.TrimSpace(string(body)), nil
}

func writeStatus(cmd *cobra.Command, s nodeStatus, doc introspect.Document) error {
	p := &view.Printer{W: cmd.OutOrStdout()}
	verdict := "ready"
	if !s.Ready {
		verdict = "NOT READY: " + s.Reason
	}
	p.Printf("Node %s: %s\n%s\n", view.NodeName(doc), verdict, view.Totals(doc))
	view.Supply(p, doc)
	view.Conditions(p, "Conditions", s.Conditions, doc.Time)
	view.LastTrouble(p, doc)
	return p.Err
}
