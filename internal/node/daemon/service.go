package daemon

import (
	"context"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/source"
)

// service turns the protocol's messages into the daemon's words and back, and
// refuses what cannot be right.
type service struct {
	rpc.UnimplementedNodeServer
	front *Front // which lets no call through before it has a daemon
}

// Add implements rpc.NodeServer.
func (s *service) Add(ctx context.Context, req *rpc.AddRequest) (*rpc.AddReply, error) {
	want, err := wantedBy(req)
	if err != nil {
		return nil, err
	}
	d := s.front.daemon
	if want.Chained, err = d.chainedBy(req); err != nil {
		return nil, err
	}
	wish := wishOf(req, d.annotations())
	if err := d.checkWish(want, wish); err != nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "bad-request", "%s", err)
	}
	rec, err := d.add(ctx, want, wish)
	if err != nil {
		return nil, err
	}
	return replyOf(rec), nil
}

// Del implements rpc.NodeServer.
func (s *service) Del(ctx context.Context, req *rpc.DelRequest) (*rpc.DelReply, error) {
	key, err := keyOf(req.GetAttachment())
	if err != nil {
		return nil, err
	}
	return &rpc.DelReply{}, s.front.daemon.del(ctx, key)
}

// Check implements rpc.NodeServer.
func (s *service) Check(ctx context.Context, req *rpc.CheckRequest) (*rpc.CheckReply, error) {
	key, err := keyOf(req.GetAttachment())
	if err != nil {
		return nil, err
	}
	prev, err := previousOf(req)
	if err != nil {
		return nil, err
	}
	return &rpc.CheckReply{}, s.front.daemon.check(ctx, key, req.GetNetns(), prev)
}

// GC implements rpc.NodeServer.
func (s *service) GC(ctx context.Context, req *rpc.GCRequest) (*rpc.GCReply, error) {
	valid := make([]attachment.Key, 0, len(req.GetValid()))
	for _, a := range req.GetValid() {
		valid = append(valid, attachment.Key{Network: req.GetNetwork(), ContainerID: a.GetContainerId(), IfName: a.GetIfName()})
	}
	released, err := s.front.daemon.gc(ctx, req.GetNetwork(), valid)
	if err != nil {
		return nil, err
	}
	reply := &rpc.GCReply{}
	for _, k := range released {
		reply.Released = append(reply.Released, &rpc.Attachment{Network: k.Network, ContainerId: k.ContainerID, IfName: k.IfName})
	}
	return reply, nil
}

// Status implements rpc.NodeServer.
func (s *service) Status(context.Context, *rpc.StatusRequest) (*rpc.StatusReply, error) {
	return &rpc.StatusReply{}, s.front.daemon.status()
}

// wantedBy is what an ADD asks for, checked: the attachment's record as far as
// the caller knows it.
func wantedBy(req *rpc.AddRequest) (want attachment.Record, err error) {
	if want.Key, err = keyOf(req.GetAttachment()); err != nil {
		return want, err
	}
	want.Netns.Path = req.GetNetns()
	if err := checkNetnsPath(want.Netns.Path); err != nil {
		return want, err
	}
	want.MTU = int(req.GetMtu())
	if want.MTU != 0 && (want.MTU < 576 || want.MTU > 65535) {
		return want, failf(types.ErrInvalidNetworkConfig, "bad-request", "mtu is %d, expected 0 or 576 to 65535", want.MTU)
	}
	want.Pod = attachment.Pod{Namespace: req.GetPod().GetNamespace(), Name: req.GetPod().GetName(), UID: req.GetPod().GetUid()}
	return want, checkPod(want.Pod)
}

// keyOf is what names an attachment, checked.
func keyOf(a *rpc.Attachment) (attachment.Key, error) {
	key := attachment.Key{Network: a.GetNetwork(), ContainerID: a.GetContainerId(), IfName: a.GetIfName()}
	return key, checkKey(key)
}

// annotations are the keys of those that this daemon looks at.
func (d *Daemon) annotations() []string {
	keys := slices.Clone(d.Source.Annotations())
	if d.NICs != nil {
		keys = append(keys, d.NICs.Annotations()...)
	}
	if d.Egress != nil {
		keys = append(keys, d.Egress.Annotations()...)
	}
	return keys
}

// checkWish refuses what no pod can have.
func (d *Daemon) checkWish(want attachment.Record, wish source.Wish) error {
	if err := d.Source.CheckWish(wish); err != nil {
		return err
	}
	req := source.Request{Key: want.Key, Pod: want.Pod, Wish: wish}
	if d.NICs != nil {
		if err := d.NICs.CheckWish(req); err != nil {
			return err
		}
	}
	if d.Egress != nil {
		return d.Egress.CheckWish(req)
	}
	return nil
}

// wishOf is what a user wrote into the pod's annotations, of those with some keys (one that
// ends in "/" stands for all that begin with it), and into the network's configuration.
func wishOf(req *rpc.AddRequest, keys []string) source.Wish {
	wish := source.Wish{Told: req.GetAnnotations() != nil, NetworkPool: req.GetPool()}
	note := func(key, value string) {
		if wish.Annotations == nil {
			wish.Annotations = make(map[string]string, len(keys))
		}
		wish.Annotations[key] = value
	}
	for _, key := range keys {
		if strings.HasSuffix(key, "/") {
			for told, value := range req.GetAnnotations().GetAll() {
				if strings.HasPrefix(told, key) {
					note(told, value)
				}
			}
			continue
		}
		if value, ok := req.GetAnnotations().Get(key); ok {
			note(key, value)
		}
	}
	return wish
}
