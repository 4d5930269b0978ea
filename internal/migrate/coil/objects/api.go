package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// object has the fields of all kinds that this file reads.
type object struct {
	metav1.ObjectMeta `json:"metadata"`
	Index             int64     `json:"index"`
	PoolName          string    `json:"poolName"`
	NodeName          string    `json:"nodeName"`
	Webhooks          []webhook `json:"webhooks"`
	Spec              struct {
		Replicas int64                `json:"replicas"`
		Selector metav1.LabelSelector `json:"selector"` // of a Deployment
	} `json:"spec"`
	Status struct {
		Phase corev1.PodPhase `json:"phase"`
		Node  *struct{}       `json:"node"` // of an EgressClient: the report of berthd
	} `json:"status"`
	raw []byte
}

// get reads an object; nil: there is none.
func (c *Cluster) get(ctx context.Context, path string) (*object, error) {
	raw, err := c.API.Get().AbsPath(path).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	o := &object{raw: raw}
	if err == nil {
		err = json.Unmarshal(raw, o)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return o, nil
}

// list reads the objects at a path, those that a selector selects if one is given: by labelSelector or fieldSelector. Kinds
// that are not installed have none.
func (c *Cluster) list(ctx context.Context, path string, by ...string) ([]object, error) {
	r := c.API.Get().AbsPath(path)
	for selector := range slices.Chunk(by, 2) {
		r = r.Param(selector[0], selector[1])
	}
	raw, err := r.DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	var l struct {
		Items []object `json:"items"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	slices.SortFunc(l.Items, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return l.Items, nil
}

// documents lists the objects at a path as a stream of manifests. Items of a list have neither kind nor version.
func (c *Cluster) documents(ctx context.Context, path string) ([]byte, error) {
	raw, err := c.API.Get().AbsPath(path).DoRaw(ctx)
	var l struct {
		metav1.TypeMeta `json:",inline"`
		Items           []map[string]any `json:"items"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &l)
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	var docs []byte
	for _, o := range l.Items {
		o["apiVersion"], o["kind"] = l.APIVersion, strings.TrimSuffix(l.Kind, "List")
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		docs = append(append(append(docs, "---\n"...), text...), '\n')
	}
	return docs, nil
}

// create creates an object, as another user if one is given.
func (c *Cluster) create(ctx context.Context, path string, o any, as string) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	r := c.API.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body)
	if as != "" {
		r = r.SetHeader("Impersonate-User", as)
	}
	return r.Do(ctx).Error()
}

func (c *Cluster) patch(ctx context.Context, path string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return c.API.Patch(types.MergePatchType).AbsPath(path).Body(body).Do(ctx).Error()
}

// delete deletes an object, and not another that has its name since it was read. Read again, the other one is told apart.
func (c *Cluster) delete(ctx context.Context, path string, o *object) error {
	err := c.deleteWith(ctx, path, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(o.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *Cluster) deleteWith(ctx context.Context, path string, with metav1.DeleteOptions) error {
	with.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	body, err := json.Marshal(with)
	if err != nil {
		return err
	}
	return c.API.Delete().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}

// remove deletes an object whose finalizers nobody would remove any more.
func (c *Cluster) remove(ctx context.Context, path string, o *object) error {
	err := c.delete(ctx, path, o)
	if err == nil {
		err = c.patch(ctx, path, map[string]any{"metadata": map[string]any{"uid": o.UID, "finalizers": nil}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
