package nodenetworksupplier

import (
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Somebody who writes to the object without pause keeps neither reports nor the
// handshake from it, though each report holds for one state of the object only.
func TestConflictStorm(t *testing.T) {
	m := newMachine(t)
	m.begin()
	m.operator(give(10, 49))
	stop := make(chan struct{})
	var storm sync.WaitGroup
	defer storm.Wait()
	defer close(stop)
	storm.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			o := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
			body := fmt.Appendf(nil, `{"metadata":{"annotations":{"storm":"%d"}}}`, i)
			_ = m.API.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, body))
		}
	})
	for i := 1; i <= 10; i++ {
		m.add(i)
		m.appears("a pod's address", func(o *v1alpha1.NodeNetwork) bool { return int(o.Status.IPAM.UsedCount) == i })
	}
	m.operator(func(o *v1alpha1.NodeNetwork) { o.Spec.IPAM.Releasing = []string{"10.0.0.49"} })
	m.appears("what is to go back", func(o *v1alpha1.NodeNetwork) bool { return len(o.Status.IPAM.Released) == 1 })
}
