package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/membership"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/manifests"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// An Egress of Coil and Berth's Egress of the same name have gateways beside each other until the migration is finished:
// clients leave Coil's gateways one node at a time, and return at a rollback. The Service stays Coil's until then, since
// tunnels of Coil's clients lead to its address. Coil's Deployment, whose name Berth's needs, is deleted without its pods.

// gatewayPolicy is the admission policy that the chart has with egress.enabled.
const gatewayPolicy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/berth-operator-makes-gateways"

// coilAccount is the service account of Coil's gateways in the namespaces of Egresses.
const coilAccount = "coil-egress"

// egresses moves the Egresses of a Cluster.
type egresses struct{ *Cluster }

// berthPath is the path of Berth's Egress with the name of an object.
func berthPath(o metav1.Object) string {
	return berthAPI + "namespaces/" + o.GetNamespace() + "/egresses/" + o.GetName()
}

func deploymentPath(o metav1.Object) string {
	return "/apis/apps/v1/namespaces/" + o.GetNamespace() + "/deployments/" + o.GetName()
}

// coilsOf is the UID of Coil's Egress that Berth's Egress replaces.
func coilsOf(e metav1.Object) types.UID {
	return types.UID(e.GetAnnotations()[v1alpha1.AnnotationCoilEgress])
}

// convert returns Berth's Egresses for Coil's.
func (c egresses) convert(ctx context.Context) (list []*v1alpha1.Egress, err error) {
	if c.Dump != nil {
		return nil, nil
	}
	has, err := c.list(ctx, coilAPI+"egresses")
	if err != nil || len(has) == 0 {
		return nil, err
	}
	uids := map[string]string{}
	for i := range has {
		uids[berthPath(&has[i])] = string(has[i].UID)
	}
	docs, err := c.documents(ctx, coilAPI+"egresses")
	if err != nil {
		return nil, err
	}
	objects, err := manifests.Read("egresses.coil.cybozu.com", bytes.NewReader(docs))
	if err != nil {
		return nil, err
	}
	out, err := manifests.Convert(manifests.Input{Objects: objects})
	if err != nil {
		return nil, err
	}
	for _, o := range out.Objects {
		e, ok := o.(*v1alpha1.Egress)
		if !ok {
			continue
		}
		uid, ok := uids[berthPath(e)]
		if !ok {
			return nil, fmt.Errorf("Coil's Egress %s/%s is new: repeat the command", e.Namespace, e.Name)
		}
		// The Service leads to Coil's gateways as long as there is a client of Coil.
		e.Spec.TunnelTo, e.Spec.OriginatingOnly = v1alpha1.TunnelToGateways, c.OriginatingOnly
		e.Annotations = map[string]string{v1alpha1.AnnotationCoilEgress: uid, v1alpha1.AnnotationCoilClients: "true"}
		if err := onMovedNodes(e); err != nil {
			return nil, fmt.Errorf("Egress %s/%s: spec.template.spec: %w", e.Namespace, e.Name, err)
		}
		list = append(list, e)
	}
	return list, nil
}

// onMovedNodes keeps an Egress's gateways on nodes where berthd runs, which lets them forward packets.
func onMovedNodes(e *v1alpha1.Egress) error {
	spec := map[string]any{}
	if e.Spec.Template == nil {
		e.Spec.Template = &v1alpha1.EgressPodTemplate{}
	}
	if raw := e.Spec.Template.Spec; raw != nil {
		if err := json.Unmarshal(raw.Raw, &spec); err != nil {
			return err
		}
	}
	selector, _ := spec["nodeSelector"].(map[string]any)
	if selector == nil {
		selector = map[string]any{}
	}
	selector[rollout.Label] = rollout.Serving
	spec["nodeSelector"] = selector
	text, err := json.Marshal(spec)
	e.Spec.Template.Spec = &runtime.RawExtension{Raw: text}
	return err
}

// plan adds to a plan what becomes of Egresses.
func (c egresses) plan(ctx context.Context, p *migrate.Plan) error {
	list, err := c.convert(ctx)
	if err != nil || len(list) == 0 {
		return err
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Namespace+"/"+e.Name)
		if why, err := c.foreign(ctx, e, coilsOf(e)); err != nil {
			return err
		} else if why != "" {
			p.Obstacles = append(p.Obstacles, migrate.Obstacle{What: why, Remedy: "delete it, or give it another name", Blocks: true})
		}
	}
	p.Found = append(p.Found, fmt.Sprintf("%d Egresses of Coil: %s", len(list), strings.Join(names, ", ")))
	p.Steps = []migrate.Step{
		p.Steps[0],
		{
			Name: "egress", What: "create Berth's Egress for each of Coil's, with the same name, destinations and replicas; its gateways run on moved nodes, beside Coil's. " +
				"A client leaves Coil's gateways when its node has moved and a gateway of Berth is ready: its TCP connections through Coil's gateways are reset then, all others go on",
		},
		p.Steps[1],
	}
	p.Steps[2].What += "; Berth's Egresses take over Coil's Services with their addresses, and Coil's gateways end"
	enabled, err := c.get(ctx, gatewayPolicy)
	if enabled == nil && err == nil {
		p.Obstacles = append(p.Obstacles, migrate.Obstacle{What: "Coil has Egresses, and Berth runs without", Remedy: "set egress.enabled of the chart", Blocks: true})
	}
	return err
}

// foreign returns why Berth's Egress of a name cannot take the place of Coil's: somebody else has objects of that name.
func (c egresses) foreign(ctx context.Context, e metav1.Object, coils types.UID) (why string, err error) {
	name := e.GetNamespace() + "/" + e.GetName()
	has, err := c.get(ctx, berthPath(e))
	if err != nil {
		return "", err
	}
	if has != nil && coilsOf(has) != coils {
		return "Egress " + name + " of Berth exists, and was not made for Coil's", nil
	}
	for _, of := range []struct{ kind, path string }{
		{"Deployment", deploymentPath(e)},
		{"PodDisruptionBudget", "/apis/policy/v1/namespaces/" + e.GetNamespace() + "/poddisruptionbudgets/" + e.GetName()},
		{"Service", "/api/v1/namespaces/" + e.GetNamespace() + "/services/" + e.GetName()},
	} {
		o, err := c.get(ctx, of.path)
		if err != nil {
			return "", err
		}
		if o != nil && !membership.IsCoils(o, coils) && (has == nil || !metav1.IsControlledBy(o, has)) {
			return of.kind + " " + name + " exists, and belongs neither to Coil's Egress nor to Berth's", nil
		}
	}
	return "", nil
}

// refuseForeign returns an error if Berth's Egress of a name cannot take the place of Coil's.
func (c egresses) refuseForeign(ctx context.Context, e metav1.Object, coils types.UID) error {
	why, err := c.foreign(ctx, e, coils)
	if err == nil && why != "" {
		err = errors.New(why + ": delete it, or give it another name")
	}
	return err
}

// importAll creates Berth's Egresses, once Coil's controllers stand still.
func (c egresses) importAll(ctx context.Context) (changed []string, err error) {
	list, err := c.convert(ctx)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	if enabled, err := c.get(ctx, gatewayPolicy); err != nil || enabled == nil {
		return nil, errors.Join(err, errors.New("Coil has Egresses, and Berth runs without: set egress.enabled of the chart"))
	}
	for _, e := range list {
		if err := c.refuseForeign(ctx, e, coilsOf(e)); err != nil {
			return changed, err
		}
		did, err := c.importOne(ctx, e)
		if changed = append(changed, did...); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

func (c egresses) importOne(ctx context.Context, e *v1alpha1.Egress) (changed []string, err error) {
	if has, err := c.get(ctx, berthPath(e)); err != nil || has != nil {
		return nil, err
	}
	name := e.Namespace + "/" + e.Name
	path, coils := deploymentPath(e), func(o *object) bool { return membership.IsCoils(o, coilsOf(e)) }
	d, err := c.get(ctx, path)
	if err != nil {
		return nil, err
	}
	if d != nil && coils(d) {
		if d.DeletionTimestamp == nil {
			if err := c.orphan(ctx, path, d); err != nil {
				return nil, fmt.Errorf("delete Coil's Deployment %s: %w", name, err)
			}
			changed = append(changed, "deleted Coil's Deployment "+name+" without its pods, which serve clients of Coil")
		}
		if err := c.await(ctx, path, coils); err != nil {
			return changed, fmt.Errorf("Coil's Deployment %s: %w", name, err)
		}
	}
	if err := c.create(ctx, berthAPI+"namespaces/"+e.Namespace+"/egresses", e, ""); err != nil {
		return changed, fmt.Errorf("create Egress %s: %w", name, err)
	}
	return append(changed, "created Egress "+name), nil
}

// orphan deletes an object, and leaves what it owns.
func (c egresses) orphan(ctx context.Context, path string, o *object) error {
	return c.deleteWith(ctx, path, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan), Preconditions: metav1.NewUIDPreconditions(string(o.UID))})
}

// await waits until there is no such object any more.
func (c *Cluster) await(ctx context.Context, path string, such func(*object) bool) error {
	for range 60 {
		o, err := c.get(ctx, path)
		if err != nil || o == nil || !such(o) {
			return err
		}
		select {
		case <-c.Clock.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errors.New("Kubernetes has not deleted it within a minute; repeat the command")
}

// back removes Berth's Egresses that importAll made. Anybody who may write an Egress may annotate it as such, so only those
// count that stand beside the Egress of Coil that they name. Coil's controller, once it runs, makes its Deployments
// again, which adopt the pods that they had.
func (c egresses) back(ctx context.Context) (changed []string, err error) {
	list, err := c.list(ctx, berthAPI+"egresses")
	if err != nil {
		return nil, err
	}
	has, err := c.list(ctx, coilAPI+"egresses")
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(e object) bool {
		return !slices.ContainsFunc(has, func(coils object) bool {
			return coils.UID == coilsOf(&e) && coils.Namespace == e.Namespace && coils.Name == e.Name
		})
	})
	for _, e := range list {
		name := e.Namespace + "/" + e.Name
		if err := c.delete(ctx, berthPath(&e), &e); err != nil {
			return changed, fmt.Errorf("delete Egress %s: %w", name, err)
		}
		changed = append(changed, "deleted Egress "+name)
	}
	for _, e := range list {
		if err := c.await(ctx, deploymentPath(&e), func(o *object) bool { return metav1.IsControlledBy(o, &e) }); err != nil {
			return changed, fmt.Errorf("Deployment %s/%s of Berth's Egress: %w", e.Namespace, e.Name, err)
		}
	}
	return changed, nil
}

// Returned deletes the EgressClients that berthd of a node has reported on, once the node is Coil's again: nobody would correct
// these reports, by which gateways serve the pods. berth-operator creates the EgressClients again, without a report.
func (c *Cluster) Returned(ctx context.Context, node string) (changed []string, err error) {
	list, err := c.list(ctx, berthAPI+"egressclients", "fieldSelector", "spec.nodeName="+node)
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		if o.Status.Node == nil {
			continue
		}
		if err := c.delete(ctx, berthAPI+"namespaces/"+o.Namespace+"/egressclients/"+o.Name, &o); err != nil {
			return changed, fmt.Errorf("delete EgressClient %s/%s: %w", o.Namespace, o.Name, err)
		}
		changed = append(changed, fmt.Sprintf("deleted EgressClient %s/%s, whose pod uses Coil's gateways again", o.Namespace, o.Name))
	}
	return changed, nil
}

// refuseFinish returns an error if an Egress cannot be finished, before anything is changed.
func (c egresses) refuseFinish(ctx context.Context) error {
	list, err := c.list(ctx, coilAPI+"egresses")
	for _, e := range list {
		if err != nil {
			break
		}
		var berths *object
		if berths, err = c.get(ctx, berthPath(&e)); err == nil && berths == nil {
			err = fmt.Errorf("Berth has no Egress in place of Coil's %s/%s: it was deleted, or Coil's is newer than the migration. Create it, with the annotation %s: %s, or delete Coil's", e.Namespace, e.Name, v1alpha1.AnnotationCoilEgress, e.UID)
		}
		if err == nil {
			err = c.refuseForeign(ctx, &e, e.UID)
		}
	}
	return err
}

// finish gives Berth's Egresses the Services of Coil's, with their addresses, and removes Coil's Egresses and
// gateways. No client of Coil is left on any node.
func (c egresses) finish(ctx context.Context) (changed []string, err error) {
	list, err := c.list(ctx, coilAPI+"egresses")
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		did, err := c.finishOne(ctx, &e)
		if changed = append(changed, did...); err != nil {
			return changed, err
		}
	}
	list, err = c.list(ctx, berthAPI+"egresses")
	for _, e := range list {
		if err != nil || coilsOf(&e) == "" {
			continue
		}
		if err = c.patch(ctx, berthPath(&e), map[string]any{"metadata": map[string]any{"uid": e.UID, "annotations": map[string]any{v1alpha1.AnnotationCoilEgress: nil}}}); err == nil {
			changed = append(changed, fmt.Sprintf("ended the migration of Egress %s/%s", e.Namespace, e.Name))
		}
	}
	return changed, err
}

func (c egresses) finishOne(ctx context.Context, e *object) (changed []string, err error) {
	name := e.Namespace + "/" + e.Name
	berths, err := c.get(ctx, berthPath(e))
	if err != nil {
		return nil, err
	}
	if berths == nil || coilsOf(berths) != e.UID {
		return nil, fmt.Errorf("Berth's Egress %s was deleted or replaced meanwhile: run finish again", name)
	}
	for _, kind := range []string{"/api/v1/namespaces/" + e.Namespace + "/services/", "/apis/policy/v1/namespaces/" + e.Namespace + "/poddisruptionbudgets/"} {
		o, err := c.get(ctx, kind+e.Name)
		if err != nil {
			return changed, err
		}
		if o == nil || metav1.IsControlledBy(o, berths) {
			continue
		}
		if !membership.IsCoils(o, e.UID) {
			return changed, fmt.Errorf("%s%s was replaced meanwhile, and belongs neither to Coil's Egress %s nor to Berth's: delete it, or rename it", kind, e.Name, name)
		}
		if err := c.patch(ctx, kind+e.Name, takenBy(berths, o, strings.Contains(kind, "services"))); err != nil {
			return changed, fmt.Errorf("make %s%s Berth's: %w", kind, e.Name, err)
		}
		changed = append(changed, fmt.Sprintf("gave %s%s to Berth's Egress %s", kind, e.Name, name))
	}
	sets, err := c.list(ctx, "/apis/apps/v1/namespaces/"+e.Namespace+"/replicasets")
	if err != nil {
		return changed, err
	}
	for _, s := range sets {
		if s.Labels["app.kubernetes.io/name"] != "coil" || s.Labels["app.kubernetes.io/component"] != "egress" || s.Labels["app.kubernetes.io/instance"] != e.Name || metav1.GetControllerOf(&s.ObjectMeta) != nil {
			continue
		}
		if err := c.delete(ctx, "/apis/apps/v1/namespaces/"+e.Namespace+"/replicasets/"+s.Name, &s); err != nil {
			return changed, fmt.Errorf("delete ReplicaSet %s/%s: %w", e.Namespace, s.Name, err)
		}
		changed = append(changed, fmt.Sprintf("deleted Coil's gateways %s/%s", e.Namespace, s.Name))
	}
	account := "/api/v1/namespaces/" + e.Namespace + "/serviceaccounts/" + coilAccount
	if has, err := c.get(ctx, account); err != nil {
		return changed, err
	} else if has != nil {
		if err := c.delete(ctx, account, has); err != nil {
			return changed, fmt.Errorf("delete ServiceAccount %s/%s: %w", e.Namespace, coilAccount, err)
		}
		changed = append(changed, "deleted ServiceAccount "+e.Namespace+"/"+coilAccount)
	}
	return append(changed, "removed Coil's Egress "+name), c.remove(ctx, coilAPI+"namespaces/"+e.Namespace+"/egresses/"+e.Name, e)
}

// takenBy is a patch that makes a Service or PodDisruptionBudget of Coil that of Berth's Egress. berth-operator does the rest.
func takenBy(e, o *object, service bool) map[string]any {
	labels := map[string]any{"app.kubernetes.io/component": nil, "app.kubernetes.io/instance": nil, "app.kubernetes.io/name": nil, v1alpha1.LabelEgress: e.Name}
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": o.ResourceVersion, "labels": labels,
		"ownerReferences": []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Egress", Name: e.Name, UID: e.UID, Controller: new(true)}},
	}}
	if service {
		patch["spec"] = map[string]any{"selector": labels}
	}
	return patch
}
