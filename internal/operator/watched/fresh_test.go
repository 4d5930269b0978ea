package watched

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/clock"
)

// apiServer lists objects named by their resource versions, in pages.
type apiServer struct {
	client.Reader
	pods     []int
	version  int
	err      error
	requests int
}

func (a *apiServer) List(_ context.Context, in client.ObjectList, options ...client.ListOption) error {
	a.requests++
	var o client.ListOptions
	o.ApplyOptions(options)
	list := in.(*metav1.PartialObjectMetadataList)
	if list.Kind != "PodList" || o.FieldSelector == nil || o.Raw != nil {
		return errors.New("not all pods that the cache has, as they are now")
	}
	from, _ := strconv.Atoi(o.Continue)
	to := min(len(a.pods), from+int(o.Limit))
	for _, n := range a.pods[from:to] {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: pod(n).ObjectMeta})
	}
	if list.ResourceVersion = strconv.Itoa(a.version); to < len(a.pods) {
		list.Continue = strconv.Itoa(to)
	}
	return a.err
}

// pod returns a pod of a resource version. Its name is the version without the last digit.
func pod(version int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: strconv.Itoa(version / 10), ResourceVersion: strconv.Itoa(version)}}
}

// A cache is fresh once it has all that the API server had when it was asked, whatever happened since.
func TestFresh(t *testing.T) {
	many := make([]int, freshPage+1)
	for i := range many {
		many[i] = 10 * (i + 1)
	}
	last := 10 * len(many)
	for what, tt := range map[string]struct {
		pods     []int // of the API server, whose version is a little higher
		cached   []int
		later    func(toolscache.Store) // after ten seconds; nil: nothing happens
		wait     time.Duration          // until Fresh returns; negative: it does not
		requests int
	}{
		"the same":                          {pods: []int{20, 31}, cached: []int{20, 31}, requests: 1},
		"none":                              {requests: 1},
		"one is missing":                    {pods: []int{20, 31}, cached: []int{31}, wait: -1, requests: 1},
		"one comes":                         {pods: []int{20, 31}, cached: []int{31}, later: func(s toolscache.Store) { _ = s.Add(pod(20)) }, wait: 10 * time.Second, requests: 1},
		"one is older":                      {pods: []int{29, 31}, cached: []int{20, 31}, later: func(s toolscache.Store) { _ = s.Update(pod(29)) }, wait: 10 * time.Second, requests: 1},
		"one is newer":                      {pods: []int{20, 31}, cached: []int{31, 29}, requests: 1},
		"one was deleted":                   {pods: []int{31}, cached: []int{20, 31}, wait: -1, requests: 1},
		"one is deleted":                    {pods: []int{31}, cached: []int{20, 31}, later: func(s toolscache.Store) { _ = s.Delete(pod(20)) }, wait: 10 * time.Second, requests: 1},
		"one is missing, and deleted since": {pods: []int{20, 31}, cached: []int{31}, later: func(s toolscache.Store) { s.Bookmark("40") }, wait: 10 * time.Second, requests: 1},
		"one was created since":             {pods: []int{20}, cached: []int{20, 80}, requests: 1},
		"a cache without any event":         {pods: []int{20}, later: func(s toolscache.Store) { _ = s.Replace([]any{pod(25)}, "26") }, wait: 10 * time.Second, requests: 1},
		"many, with a later event":          {pods: many, cached: []int{last + 2}, requests: 1},
		"many":                              {pods: many, cached: many, wait: freshWait, requests: 2},
		"many, but one":                     {pods: many, cached: many[:freshPage], later: func(s toolscache.Store) { _ = s.Add(pod(last)) }, wait: 10 * time.Second, requests: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
			for _, n := range tt.cached {
				_ = store.Add(pod(n))
			}
			server := &apiServer{pods: tt.pods, version: 1}
			for _, n := range tt.pods {
				server.version = max(server.version, n+1)
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("too late"))
			defer cancel()
			if tt.later != nil {
				time.AfterFunc(10*time.Second, func() { tt.later(store) })
			}
			began := time.Now()
			err := API{server, scheme.Scheme}.Fresh(ctx, PolicyPods, store, clock.Real{})
			took := time.Since(began).Truncate(time.Second)
			if tt.wait < 0 && (err == nil || err.Error() != "too late") || tt.wait >= 0 && (err != nil || took != tt.wait) || server.requests != tt.requests {
				t.Errorf("%s: Fresh() = %v after %v and %d requests, want %v and %d requests", what, err, took, server.requests, tt.wait, tt.requests)
			}
		})
	}
}

// An API server that does not answer proves nothing.
func TestFreshFails(t *testing.T) {
	server := &apiServer{err: errors.New("no route to host")}
	err := API{server, scheme.Scheme}.Fresh(t.Context(), PolicyPods, toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), clock.Real{})
	if err == nil || !strings.Contains(err.Error(), "list objects of kind Pod: no route to host") {
		t.Errorf("Fresh() = %v", err)
	}
}
