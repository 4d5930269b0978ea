package kubectl

import (
	"context"
	"fmt"
	"os"

	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	coilobjects "github.com/berthnet/berth/internal/migrate/coil/objects"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// objectMover moves the former system's objects in the Kubernetes API.
type objectMover interface {
	Plan(ctx context.Context) (migrate.Plan, error)
	// Begin makes the objects Berth's before the first node moves.
	Begin(ctx context.Context) (changed []string, err error)
	// Back undoes Begin once no node is Berth's any more.
	Back(ctx context.Context) (changed []string, err error)
	// Finish removes the former system's objects once nothing of it is left on any node.
	Finish(ctx context.Context) (changed []string, err error)
}

// coilObjects moves the pools and blocks of Coil. dump is the file with a dump of etcd of Coil v1.
func (m *migration) coilObjects(dump string) (objectMover, error) {
	c := &coilobjects.Cluster{
		API: m.api.rest, Operator: fmt.Sprintf("system:serviceaccount:%s:berth-operator", m.daemons), Namespace: m.namespace, Clock: m.clock,
	}
	if dump == "" {
		return c, nil
	}
	data, err := os.ReadFile(dump)
	if err != nil {
		return nil, err
	}
	d, err := etcd.ParseDump(data, etcd.DefaultPrefix)
	c.Dump = &d
	return c, err
}

// beforeNodes and afterNodes move the objects before and after the nodes move.
func (m *migration) beforeNodes(ctx context.Context, d rollout.Direction) ([]string, error) {
	if m.objects == nil || d != rollout.Apply {
		return nil, nil
	}
	return m.objects.Begin(ctx)
}

func (m *migration) afterNodes(ctx context.Context, d rollout.Direction, s *rollout.State) ([]string, error) {
	if m.objects == nil || d == rollout.Apply {
		return nil, nil
	}
	if d == rollout.Finish {
		return m.objects.Finish(ctx)
	}
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Label != "" || n.Record.Direction != "" {
			return nil, nil // some are Berth's still
		}
	}
	return m.objects.Back(ctx)
}
