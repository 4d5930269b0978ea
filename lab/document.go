package lab

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
)

// Document fetches a node's introspection document from inside the node.
func Document(ctx context.Context, n *node.Node) (introspect.Document, error) {
	var doc introspect.Document
	body, err := n.Get(ctx, node.IntrospectionURL)
	if err != nil {
		return doc, err
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		return doc, fmt.Errorf("read the introspection document: %w", err)
	}
	return doc, nil
}

// WaitAvailable returns once a node has so many addresses to hand out, or ctx ends.
func WaitAvailable(ctx context.Context, n *node.Node, want int) error {
	return poll.Until(ctx, func() error {
		doc, err := Document(ctx, n)
		if err == nil && doc.Totals.Available < want {
			err = fmt.Errorf("%s has %d addresses available, expected %d", n.Name, doc.Totals.Available, want)
		}
		return err
	})
}
