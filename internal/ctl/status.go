package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

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

// node is the introspection endpoint of a berthd.
type node struct {
	address string
	timeout time.Duration
}

func (n *node) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&n.address, "address", "localhost:6666", "where berthd serves introspection (its --introspection-address)")
	cmd.Flags().DurationVar(&n.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
}

// maxDocument bounds a response, in bytes. The document of the largest node is far smaller.
const maxDocument = 64 << 20

// document reads berthd's introspection document.
func (n *node) document(ctx context.Context) (introspect.Document, error) {
	var doc introspect.Document
	body, code, err := n.get(ctx, introspect.Path)
	switch {
	case err != nil:
		return doc, n.explain(err)
	case code != http.StatusOK:
		return doc, fmt.Errorf("berthd at %s: %s", n.address, view.Printable(strings.TrimSpace(string(body))))
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return doc, fmt.Errorf("%s does not serve berthd's %s: %w", n.address, introspect.Path, err)
	}
	return doc, nil
}

func (n *node) get(ctx context.Context, path string) (body []byte, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	address := n.address
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(strings.TrimSuffix(address, "/"), introspect.Path)+path, nil)
	if err != nil {
		return nil, 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: berthd is on this node
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxDocument))
	return body, resp.StatusCode, err
}

// explain adds what to do to an error of a request to berthd.
func (n *node) explain(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens at %s: check that berthd runs on this node and that --address is right", n.address)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("no answer from %s in time: look at berthd's log", n.address)
	}
	return fmt.Errorf("query berthd: %w", err)
}
