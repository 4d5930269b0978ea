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
	s.object = n
	s.mirror.Sync.SetListed(true, resource)
	s.mu.Unlock()
	s.changed.Set()
}

// heard notes the outcome of a request. The loop looks again when an outage begins or is over.
func (s *supplier) heard(err error) { s.mirror.Heard(resource, err) }

// newMirror tracks outages of the API server for a supplier.
func (s *supplier) newMirror() *kubeapi.Mirror {
	return &kubeapi.Mirror{API: s.api, Sync: kubeapi.NewSync(), Log: s.log, Update: func(change func()) {
		change()
		s.changed.Set()
	}}
}
