package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// withoutAPI serves a node while the API server is away, and waits until the
// node's object tells of that.
func withoutAPI(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[2]
	if err := errors.Join(s.lab.BindPods(ctx, n, "no-api"), s.warm(ctx, n), s.lab.Reported(ctx)); err != nil {
		return "", err
	}
	leaving := n.Pods()[0]
	served, err := s.serveWithoutAPI(ctx, n, "no-api", leaving.Name)
	if err != nil {
		return "", err
	}
	began := time.Now()
	p, err := n.Pod("no-api")
	if err != nil {
		return "", err
	}
	err = until(ctx, "NodeNetwork "+n.Name+" tells of it", func() error {
		o, err := s.lab.Kube.NodeNetwork(ctx, n.Name)
		if err != nil {
			return err
		}
		used := o.Status.IPAM.Used
		if used[p.Addr().String()].UID != p.UID || used[leaving.Addr().String()].UID == leaving.UID {
			return fmt.Errorf("used: %v", used)
		}
		return nil
	})
	told := time.Since(began)
	if err := errors.Join(err, s.recovered(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s; its NodeNetwork tells %s after the API is back", served, ms(told)), nil
}

// serveWithoutAPI kills the API server, makes a pod and removes one, and starts it
// again. It returns how long these took.
func (s *stage) serveWithoutAPI(ctx context.Context, n *node.Node, coming, leaving string) (figures string, err error) {
	if err := s.lab.Kube.KillAPIServer(); err != nil {
		return "", err
	}
	began := time.Now()
	_, err = n.AddPod(ctx, coming, node.PodOptions{})
	added := time.Since(began)
	if err == nil {
		began = time.Now()
		err = n.DelPod(ctx, leaving)
	}
	deleted := time.Since(began)
	return fmt.Sprintf("ADD %s, DEL %s without it", ms(added), ms(deleted)), errors.Join(err, s.lab.Kube.StartAPIServer(ctx))
}

// recovered waits until every operator is ready again. One that cannot keep its
// Lease ends, and the lab starts it again as a kubelet does.
func (s *stage) recovered(ctx context.Context) error {
	return until(ctx, "operators", func() error {
		var errs []error
		for _, o := range s.lab.Operators() {
			if _, err := o.Get(ctx, "/readyz"); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", o.Name, err))
			}
		}
		return errors.Join(errs...)
	})
}

// fullSubnet launches a node whose object a person has restricted to a subnet
// that is nearly full, reads what the object says, and adds a subnet to it.
func fullSubnet(ctx context.Context, s *stage) (figures string, err error) {
	cloud := s.lab.Cloud
	// Of 7 addresses that are left the node and its ENI take 2.
	pods, room, filled := 6, 5, 3
	if s.lead() == ipfamily.IPv6 { // no end of its addresses, but each ENI takes one of IPv4
		pods, room, filled = 7, 6, 8
	}
	filler, err := cloud.ENIs.Create(vpc.CreateRequest{
		SubnetID: s.subnet(smallSubnet), Addresses: vpc.AddressRequest{IPv4Count: filled},
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, cloud.ENIs.Delete(filler.ID)) }()
	i := s.next()
	i.ID, i.Subnet = "i-0123456789abcdef0", smallSubnet
	o := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: i.ID, InstanceType: i.Type}}
	o.Name = i.Name
	spare := int32(watermark)
	o.Spec.ENI.PreAllocate, o.Spec.ENI.SubnetIDs = &spare, []string{s.subnet(smallSubnet)}
	o.Spec.ENI.IPFamilies = string(s.lab.PodFamilies()) // what a person sets counts before a daemon does
	if err := s.lab.Kube.CreateNodeNetwork(ctx, o); err != nil {
		return "", err
	}
	n, err := s.launch(ctx, i)
	if err != nil {
		return "", err
	}
	up := make(chan error, 1)
	go func() { up <- s.add(ctx, n, names("pod", pods)) }()
	err = s.until(ctx, n, func(o *v1alpha1.NodeNetwork) error { return has(o, v1alpha1.ConditionInDeficit, "True", "subnet") })
	if err != nil {
		return "", errors.Join(err, <-up)
	}
	err = until(ctx, "pods of "+n.Name, func() (err error) {
		if got := len(n.Pods()); got != room {
			err = fmt.Errorf("%d are up, want %d", got, room)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if o, err = s.lab.Kube.NodeNetwork(ctx, n.Name); err != nil {
		return "", err
	}
	running, told := len(n.Pods()), reason(o, v1alpha1.ConditionInDeficit)
	began := time.Now()
	err = s.lab.Kube.EditNodeNetwork(ctx, n.Name, func(o *v1alpha1.NodeNetwork) {
		o.Spec.ENI.SubnetIDs = append(o.Spec.ENI.SubnetIDs, s.subnet(spareSubnet))
	})
	if err != nil {
		return "", err
	}
	err = errors.Join(<-up, s.until(ctx, n, func(o *v1alpha1.NodeNetwork) error { return has(o, v1alpha1.ConditionInDeficit, "False", "") }))
	return fmt.Sprintf("%s: %d of %d pods, %q; all up %.1f s after its object names another subnet",
		n.Name, running, pods, told, time.Since(began).Seconds()), err
}

// until waits for a node's object to be as it should.
func (s *stage) until(ctx context.Context, n *node.Node, is func(*v1alpha1.NodeNetwork) error) error {
	return until(ctx, "NodeNetwork "+n.Name, func() error {
		o, err := s.lab.Kube.NodeNetwork(ctx, n.Name)
		if err != nil {
			return err
		}
		return is(o)
	})
}

func (s *stage) subnet(name string) string {
	for _, sub := range s.lab.Books().Subnets {
		if sub.Name == name {
			return sub.ID
		}
	}
	return ""
}

func reason(o *v1alpha1.NodeNetwork, kind string) string {
	for _, c := range o.Status.Conditions {
		if c.Type == kind {
			return c.Reason + ": " + strings.SplitN(c.Message, "\n", 2)[0]
		}
	}
	return ""
}

// scrapped terminates the last node's instance.
func scrapped(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[len(s.nodes)-1]
	enis := len(s.lab.Books().InstanceENIs(n.InstanceID))
	began := time.Now()
	if err := s.lab.Cloud.Instances.Terminate(n.InstanceID); err != nil {
		return "", err
	}
	s.nodes = s.nodes[:len(s.nodes)-1]
	err := until(ctx, "nothing is left of "+n.Name, func() error {
		_, err := s.lab.Kube.NodeNetwork(ctx, n.Name)
		switch {
		case err == nil:
			return errors.New("its NodeNetwork is still there")
		case !apierrors.IsNotFound(err):
			return err
		}
		if left := s.lab.Books().InstanceENIs(n.InstanceID); len(left) > 0 {
			return fmt.Errorf("%d ENIs are still there", len(left))
		}
		return nil
	})
	return fmt.Sprintf("%s, its NodeNetwork and %d ENIs are gone after %.1f s", n.Name, enis, time.Since(began).Seconds()), err
}

// shrink deletes all pods but one of a full node and follows its object until
// the last ENI is gone.
func shrink(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[2]
	enis := len(s.lab.Books().InstanceENIs(n.InstanceID))
	o, err := s.lab.Kube.NodeNetwork(ctx, n.Name)
	if err != nil {
		return "", err
	}
	before := s.addressesOf(o)
	handshake, stop, err := s.follow(ctx, n.Name)
	if err != nil {
		return "", err
	}
	defer stop()
	began := time.Now()
	for _, p := range n.Pods()[1:] {
		if err := n.DelPod(ctx, p.Name); err != nil {
			return "", err
		}
	}
	err = until(ctx, "the excess goes back", func() error {
		if o, err = s.lab.Kube.NodeNetwork(ctx, n.Name); err != nil {
			return err
		}
		have, want := s.addressesOf(o), len(n.Pods())+watermark
		if left := len(s.lab.Books().InstanceENIs(n.InstanceID)); have > want || left >= enis {
			return fmt.Errorf("%d addresses (want %d) on %d ENIs (had %d): %s", have, want, left, enis, conditions(o))
		}
		// What has happened is heard of a little later.
		if back, seen := before-s.addressesOf(o), handshake(); seen.confirmed < back {
			return fmt.Errorf("%d addresses went back, the daemon confirmed %d of %d candidates", back, seen.confirmed, seen.listed)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	seen := handshake()
	return fmt.Sprintf("%s: %d addresses listed, %d confirmed by the daemon; from %d to %d; 1 ENI deleted; %.1f s, 4 of them cooling",
		n.Name, seen.listed, seen.confirmed, before, s.addressesOf(o), time.Since(began).Seconds()), nil
}

// listing is what was seen of a handshake.
type listing struct{ listed, confirmed int }

// follow watches a NodeNetwork until stop is called. seen tells what there was so far.
func (s *stage) follow(ctx context.Context, name string) (seen func() listing, stop func(), err error) {
	events, cancel, err := s.lab.Kube.Watch(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex // guards listed and confirmed
	listed, confirmed := map[string]bool{}, map[string]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for o := range events {
			mu.Lock()
			for _, a := range o.Spec.IPAM.Releasing {
				listed[a] = true
			}
			for _, a := range o.Status.IPAM.Released {
				confirmed[a] = true
			}
			mu.Unlock()
		}
	}()
	seen = func() listing {
		mu.Lock()
		defer mu.Unlock()
		return listing{len(listed), len(confirmed)}
	}
	return seen, func() { cancel(); <-done }, nil
}
