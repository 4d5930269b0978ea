package daemon

import (
	"context"
	"net/netip"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/datapath/datapathfake"
)

// fakeKernel is a data path in memory of which tests have calls fail, or look at these.
type fakeKernel struct {
	fakeCalls
	*datapathfake.Node
	all *datapathfake.Kernel
}

var _ Kernel = (*fakeKernel)(nil)

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{fakeCalls: newFakeCalls(), all: datapathfake.NewKernel()}
	k.all.AnyNetns = true
	k.Node = k.all.Open(func(method string, effect func()) error {
		err := k.enter(context.Background(), method)
		defer k.mu.Unlock()
		if err == nil {
			effect()
		}
		return err
	})
	return k
}

// dropRoutes is somebody's removal of all routes.
func (k *fakeKernel) dropRoutes() {
	k.all.Edit(func(_ map[string]datapath.Pod, routes map[netip.Addr]string) { clear(routes) })
}

func (k *fakeKernel) dropRoute(a netip.Addr) {
	k.all.Edit(func(_ map[string]datapath.Pod, routes map[netip.Addr]string) { delete(routes, a) })
}
