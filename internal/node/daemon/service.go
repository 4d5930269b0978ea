package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/rpc"
)

// service implements the protocol, and rejects invalid requests.
type service struct {
	rpc.UnimplementedNodeServer
	front *Front // it has a daemon whenever a method is called
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
	a := d.attachments.acquirer
	options := optionsOf(req, a.annotations())
	if err := a.checkOptions(attachment.Request{Key: want.Key, Pod: want.Pod, Options: options}); err != nil {
		return nil, cnierror.New(types.ErrInvalidNetworkConfig, "bad-request", "%s", err)
	}
	rec, err := d.attachments.add(ctx, want, options)
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
	return &rpc.DelReply{}, s.front.daemon.attachments.del(ctx, key)
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
	return &rpc.CheckReply{}, s.front.daemon.attachments.check(ctx, key, req.GetNetns(), prev)
}

// GC implements rpc.NodeServer.
func (s *service) GC(ctx context.Context, req *rpc.GCRequest) (*rpc.GCReply, error) {
	valid := make([]attachment.Key, 0, len(req.GetValid()))
	for _, a := range req.GetValid() {
		valid = append(valid, attachment.Key{Network: req.GetNetwork(), ContainerID: a.GetContainerId(), IfName: a.GetIfName()})
	}
	released, err := s.front.daemon.attachments.gc(ctx, req.GetNetwork(), valid)
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

// wantedBy validates an ADD, and returns the record as far as the caller knows it.
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
		return want, cnierror.New(types.ErrInvalidNetworkConfig, "bad-request", "mtu is %d, expected 0 or 576 to 65535", want.MTU)
	}
	want.Pod = attachment.Pod{Namespace: req.GetPod().GetNamespace(), Name: req.GetPod().GetName(), UID: req.GetPod().GetUid()}
	return want, checkPod(want.Pod)
}

// keyOf validates and returns the key of an attachment.
func keyOf(a *rpc.Attachment) (attachment.Key, error) {
	key := attachment.Key{Network: a.GetNetwork(), ContainerID: a.GetContainerId(), IfName: a.GetIfName()}
	return key, checkKey(key)
}

// optionsOf returns what a user asks for by the network's configuration and by pod annotations with the
// given keys. A key that ends in "/" is a prefix.
func optionsOf(req *rpc.AddRequest, keys []string) attachment.PodOptions {
	options := attachment.PodOptions{AnnotationsKnown: req.GetAnnotations() != nil, NetworkPool: req.GetPool()}
	note := func(key, value string) {
		if options.Annotations == nil {
			options.Annotations = make(map[string]string, len(keys))
		}
		options.Annotations[key] = value
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
	return options
}

// chainedBy returns the interface that a plugin before this one created, or nil where this one creates
// it. It rejects a request of the other kind, which was meant for another network's daemon.
func (d *Daemon) chainedBy(req *rpc.AddRequest) (*attachment.Chained, error) {
	previous := req.GetPrevious()
	switch {
	case previous == nil && !d.Chained:
		return nil, nil
	case previous == nil:
		return nil, cnierror.New(types.ErrInvalidNetworkConfig, "not-chained", "berthd has no addresses of its own (--ipam=none), and no plugin before berth created the pod's interface: "+
			"put berth at the end of another network's list of plugins")
	case !d.Chained:
		return nil, cnierror.New(types.ErrInvalidNetworkConfig, "chained", "a plugin before berth already created the pod's interface, and berthd has addresses of its own (--ipam=%s): "+
			"put berth first in its network's list of plugins, or run berthd with --ipam=none", d.IPAM)
	}
	chained := &attachment.Chained{}
	for _, cidr := range previous.GetAddresses() {
		p, err := netip.ParsePrefix(cidr)
		if err != nil || p.Addr().Zone() != "" || p.Addr().Is4In6() {
			return nil, cnierror.New(types.ErrInvalidNetworkConfig, "bad-request", "prevResult: address %q is not a CIDR", cidr)
		}
		chained.Addresses = append(chained.Addresses, p.Addr())
	}
	if len(chained.Addresses) == 0 {
		return nil, cnierror.New(types.ErrInvalidNetworkConfig, "bad-request", "prevResult has no address of interface %s", req.GetAttachment().GetIfName())
	}
	return chained, nil
}

// The maximum lengths of names, in bytes. Names are kept in records and shown to people.
const (
	maxContainerID = 1024
	maxNetwork     = 253  // as a Kubernetes name; CNI sets no limit
	maxNetnsPath   = 4095 // PATH_MAX without the terminating zero
	maxNamespace   = 63   // RFC 1123 label, as Kubernetes has it
	maxPodName     = 253  // RFC 1123 subdomain, likewise
	maxPodUID      = 128  // a UUID has 36; UIDs of static pods are hashes
	maxLinkName    = 15   // IFNAMSIZ without the terminating zero
)

// checkKey applies CNI's rules for container IDs and networks, and the kernel's for interface names.
func checkKey(key attachment.Key) error {
	if err := checkName("CNI_CONTAINERID", key.ContainerID, maxContainerID); err != nil {
		return err
	}
	if err := checkName("name of the network", key.Network, maxNetwork); err != nil {
		return err
	}
	if err := checkName("CNI_IFNAME", key.IfName, maxLinkName); err != nil {
		return err
	}
	switch {
	case key.ContainerID == "":
		return badRequest("CNI_CONTAINERID is empty")
	case utils.ValidateContainerID(key.ContainerID) != nil:
		return badRequest("CNI_CONTAINERID is %q, expected letters, digits, '_', '.' and '-'", key.ContainerID)
	case key.IfName == "" || key.IfName == "." || key.IfName == ".." || strings.ContainsAny(key.IfName, "/:%"): // the kernel replaces % by a number
		return badRequest("CNI_IFNAME is %q, expected 1 to %d characters without '/', ':', '%%' and spaces", key.IfName, maxLinkName)
	}
	return nil
}

// checkPod checks lengths and printability of a pod's names. It does not require Kubernetes'
// characters, as CNI has other users.
func checkPod(pod attachment.Pod) error {
	for _, f := range []struct {
		name, value string
		most        int
	}{{"K8S_POD_NAMESPACE", pod.Namespace, maxNamespace}, {"K8S_POD_NAME", pod.Name, maxPodName}, {"K8S_POD_UID", pod.UID, maxPodUID}} {
		if err := checkName(f.name, f.value, f.most); err != nil {
			return err
		}
	}
	return nil
}

// checkName rejects values that are too long or contain spaces or control characters.
func checkName(field, value string, most int) error {
	if len(value) > most {
		return badRequest("%s is %d bytes long, expected at most %d", field, len(value), most)
	}
	if !printable(value) || strings.Contains(value, " ") {
		return badRequest("%s is %+q, expected no spaces and no control characters", field, value)
	}
	return nil
}

// checkNetnsPath checks CNI_NETNS, which may have spaces.
func checkNetnsPath(path string) error {
	switch {
	case path == "":
		return badRequest("CNI_NETNS is empty, expected the path of the pod's network namespace")
	case len(path) > maxNetnsPath:
		return badRequest("CNI_NETNS is %d bytes long, expected at most %d", len(path), maxNetnsPath)
	case !printable(path):
		return badRequest("CNI_NETNS is %+q, expected no control characters", path)
	}
	return nil
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) < 0
}

func badRequest(format string, args ...any) error {
	return cnierror.New(types.ErrInvalidEnvironmentVariables, "bad-request", "%s", fmt.Sprintf(format, args...))
}
