package objects

import (
	"context"
	"slices"
	"strings"
)

// Finish removes Coil's objects, once nothing of Coil is left on any node.
func (c *Cluster) Finish(ctx context.Context) (changed []string, err error) {
	if c.Dump != nil {
		return nil, nil // they are in its etcd
	}
	if err := (egresses{c}).refuseFinish(ctx); err != nil {
		return nil, err
	}
	did, err := c.removeWebhooks(ctx)
	if changed = append(changed, did...); err != nil {
		return changed, err
	}
	did, err = egresses{c}.finish(ctx)
	if changed = append(changed, did...); err != nil {
		return changed, err
	}
	for _, kind := range []string{"blockrequests", "addressblocks", "addresspools"} {
		objects, err := c.list(ctx, coilAPI+kind)
		if err != nil {
			return changed, err
		}
		for _, o := range objects {
			if err := c.remove(ctx, coilAPI+kind+"/"+o.Name, &o); err != nil {
				return changed, err
			}
			changed = append(changed, "removed Coil's "+strings.TrimSuffix(kind, "s")+" "+o.Name)
		}
	}
	for _, name := range controllers {
		d, err := c.get(ctx, controller(c.Namespace, name))
		if err != nil {
			return changed, err
		}
		if d == nil {
			continue
		}
		if err := c.delete(ctx, controller(c.Namespace, name), d); err != nil {
			return changed, err
		}
		changed = append(changed, "deleted Deployment "+c.Namespace+"/"+name)
	}
	namespaces, err := c.list(ctx, "/api/v1/namespaces")
	if err != nil {
		return changed, err
	}
	for _, ns := range namespaces {
		if _, has := ns.Annotations[coilPoolKey]; !has {
			continue
		}
		if err := c.patch(ctx, "/api/v1/namespaces/"+ns.Name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{coilPoolKey: nil}}}); err != nil {
			return changed, err
		}
		changed = append(changed, "removed Coil's annotation of Namespace "+ns.Name)
	}
	return changed, nil
}

// removeWebhooks deletes webhooks for Coil's kinds alone. Nobody answers them, so every change of these objects would
// be refused.
func (c *Cluster) removeWebhooks(ctx context.Context) (changed []string, err error) {
	for _, kind := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		path := "/apis/admissionregistration.k8s.io/v1/" + kind
		list, err := c.list(ctx, path)
		if err != nil {
			return changed, err
		}
		for _, w := range list {
			if len(w.Webhooks) == 0 || slices.ContainsFunc(w.Webhooks, func(h webhook) bool { return !h.coils() }) {
				continue
			}
			if err := c.delete(ctx, path+"/"+w.Name, &w); err != nil {
				return changed, err
			}
			changed = append(changed, "deleted the webhooks "+w.Name)
		}
	}
	return changed, nil
}

type webhook struct {
	Rules []struct {
		APIGroups []string `json:"apiGroups"`
	} `json:"rules"`
}

func (w webhook) coils() bool {
	for _, r := range w.Rules {
		if !slices.Equal(r.APIGroups, []string{"coil.cybozu.com"}) {
			return false
		}
	}
	return len(w.Rules) > 0
}
