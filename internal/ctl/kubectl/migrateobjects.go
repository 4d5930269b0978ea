package kubectl

import (
	"cmp"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/migrate/coil/etcd"
	coilobjects "github.com/berthnet/berth/internal/migrate/coil/objects"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// moveObjects moves the former system's objects with the step to which they belong.
func (m *migration) moveObjects(ctx context.Context, with rollout.Action) error {
	returned := with.Kind == rollout.Write && with.Record.Direction == ""
	if m.from.objects == nil || !returned && with.Kind != rollout.Confine && with.Kind != rollout.DeleteFormer && with.Kind != rollout.End {
		return nil
	}
	o, err := m.from.objects(m)
	if err != nil {
		return err
	}
	var changed []string
	switch with.Kind {
	case rollout.Write:
		changed, err = o.Returned(ctx, with.Node)
	case rollout.Confine:
		changed, err = o.Begin(ctx)
	case rollout.DeleteFormer:
		changed, err = o.Finish(ctx)
	case rollout.End: // of a rollback, if the former system is still there
		former, readErr := m.daemonSet(ctx, m.formerNamespace, m.formerName)
		if readErr != nil || former == nil {
			return readErr
		}
		changed, err = o.Back(ctx)
	}
	for _, what := range changed {
		m.tell(with.Node, what)
	}
	return err
}

// coilObjects returns what moves Coil's pools and blocks.
func (m *migration) coilObjects() (objectMover, error) {
	c := &coilobjects.Cluster{API: m.api.rest, Operator: m.operatorUser(), Namespace: m.formerNamespace, Clock: m.clock, OriginatingOnly: hasFlag(&m.formerSpec, "enable-originating-only")}
	if m.dump != nil {
		d, err := etcd.ParseDump(m.dump, etcd.DefaultPrefix)
		if err != nil {
			return nil, err
		}
		c.Dump = &d
	}
	return c, nil
}

// hasFlag reports whether a program of a pod has a boolean flag.
func hasFlag(spec *corev1.PodSpec, name string) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool { return arg == "--"+name || arg == "--"+name+"=true" })
	})
}

// operatorUser returns the user name of berth-operator.
func (m *migration) operatorUser() string {
	return "system:serviceaccount:" + m.daemons + ":" + cmp.Or(m.operatorAccount, connect.OperatorName)
}

// readOperator reads the service account of berth-operator, if there is one.
func (m *migration) readOperator(ctx context.Context) error {
	var d appsv1.Deployment
	err := into(ctx, m.api.rest.Get().AbsPath("/apis/apps/v1/namespaces"+join(m.daemons, "deployments", connect.OperatorName)), &d)
	m.operatorAccount = d.Spec.Template.Spec.ServiceAccountName
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// settingsOf returns the environment of the former daemon.
func settingsOf(spec *corev1.PodSpec) map[string]string {
	out := map[string]string{}
	for _, c := range spec.Containers[:min(1, len(spec.Containers))] { // the daemon; others are helpers
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				out[e.Name] = e.Value
			}
		}
	}
	return out
}
