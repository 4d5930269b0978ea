package clients

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// wrote is which EgressClients this process wrote last, so that it does not write again
// what the cache does not show yet.
type wrote struct {
	mu       sync.Mutex // guards versions
	versions map[types.NamespacedName]string
}

func newWrote() *wrote { return &wrote{versions: map[types.NamespacedName]string{}} }

// note takes in that an object was written, with which resource version.
func (w *wrote) note(key types.NamespacedName, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.versions[key] = version
}

// trails tells whether an object as the cache has it is older than what was written; nil: it
// has none. One that does not is forgotten.
func (w *wrote) trails(key types.NamespacedName, o *v1alpha1.EgressClient) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	version, has := w.versions[key]
	if has && o != nil && newer(version, o.ResourceVersion) {
		return true
	}
	delete(w.versions, key)
	return false
}
