package ports

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
)

// naive has the ports made as kuryr-kubernetes makes those of pods without a pool
// (NeutronPodVIFDriver): a call that makes one bound to its node, and others that look
// whether it is active. It has as many calls under way as the provider bears, and looks
// first when the node has plugged the port.
func naive(ctx context.Context, o Order, p *portfake.Provider) (out Outcome, err error) {
	var mu sync.Mutex // guards bound
	var bound []time.Duration
	began := time.Now()
	if o.Late > 0 {
		<-time.After(o.Late) // it begins once a pod has its node
	}
	err = objects.Each(ctx, o.Pods, o.Pods, func(ctx context.Context, i int) error {
		host := nodeName(i % o.Nodes)
		made, err := p.Create(ctx, []vpcport.NewPort{{NetworkID: network.ID, Device: fmt.Sprint("pod-", i), Host: host}})
		if err != nil {
			return err
		}
		mu.Lock()
		bound = append(bound, time.Since(began))
		mu.Unlock()
		<-time.After(nodesTake)
		p.Plug(made[0].ID, host)
		got, err := p.Get(ctx, made[0].ID)
		if err == nil && got.Status != vpcport.StatusActive {
			err = fmt.Errorf("port %s is not active", got.ID)
		}
		return err
	})
	if err != nil {
		return out, err
	}
	out.Active = time.Since(began)
	slices.Sort(bound)
	out.Bound, out.Median = bound[len(bound)-1], bound[(len(bound)-1)/2]
	out.Calls, out.Forced = callsOf(p), forced(o, p.Traits())
	return out, nil
}
