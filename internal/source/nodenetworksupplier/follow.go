package nodenetworksupplier

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// follow keeps the object at hand by a list and a watch of it alone, until ctx
// ends. Neither begins with an old state: what was unassigned since would be a
// pod's again.
func (s *supplier) follow(ctx context.Context) {
	own := s.api.Objects(resource, fields.OneTermEqualSelector("metadata.name", s.cfg.NodeName).String(),
		func() runtime.Object { return &v1alpha1.NodeNetworkList{} })
	kubeapi.Follow(ctx, resource, own, kubeapi.Handler[*v1alpha1.NodeNetwork]{
		Heard: s.heard,
		Put:   s.put,
		Gone: func(n *v1alpha1.NodeNetwork) {
			s.observe(nil, func(have *v1alpha1.NodeNetwork) bool { return have != nil && have.UID == n.UID })
		},
		All: func(list []*v1alpha1.NodeNetwork) {
			var n *v1alpha1.NodeNetwork
			for _, o := range list {
				n = o
			}
			s.observe(n, func(*v1alpha1.NodeNetwork) bool { return true })
		},
	})
}

// put takes a state of the object unless it is behind: the watch may trail the
// reply to a report.
func (s *supplier) put(n *v1alpha1.NodeNetwork) {
	s.observe(n, func(have *v1alpha1.NodeNetwork) bool { return have == nil || !nodenetwork.Newer(have, n) })
}

// observe takes a state of the object, nil when there is none, if accept agrees
// to put it in place of the one at hand.
func (s *supplier) observe(n *v1alpha1.NodeNetwork, accept func(have *v1alpha1.NodeNetwork) bool) {
	s.mu.Lock()
	if !accept(s.object) {
		s.mu.Unlock()
		return
	}
	s.object, s.listed = n, true
	s.mu.Unlock()
	s.changed.Set()
}

// heard notes whether the API server answered, and logs when that changed.
func (s *supplier) heard(err error) {
	if kubeapi.Ended(err) {
		return
	}
	s.mu.Lock()
	before := s.apiErr
	s.apiErr = err
	s.mu.Unlock()
	switch {
	case err != nil && before == nil:
		s.log.Warn("the Kubernetes API cannot be used; serving goes on from memory", "error", err)
	case err == nil && before != nil:
		s.log.Info("the Kubernetes API can be used again")
	}
	if (err == nil) != (before == nil) {
		s.changed.Set()
	}
}
