// Package cni is the plugin: it turns CNI verbs (specification versions 0.3.1
// to 1.1.0) into calls to berthd and the answers into CNI results. It holds no
// state and needs no privilege but to reach the daemon's socket.
//
// The plugin is started for every ADD and DEL, so that what it imports is paid
// for each time: see packages unary and wire. It handles no signals on purpose: when the
// runtime ends it, the kernel closes its connection, and berthd drops the call.
package cni

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/rpc/unary"
	"github.com/berthnet/berth/internal/rpc/wire"
)

// Versions are those of the CNI specification that the plugin speaks.
var Versions = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

// Funcs are the verbs, for skel.PluginMainFuncs. Each returns nil or a *types.Error.
func Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status}
}

// add attaches an interface and prints the result; after another network's plugins, what
// these made of it is printed as it is.
func add(args *skel.CmdArgs) error {
	conf, err := parseAdd(args.StdinData)
	if err != nil {
		return err
	}
	pod, err := parseArgs(args.Args)
	if err != nil {
		return err
	}
	if err := checkNetns(args); err != nil {
		return err
	}
	request := wire.AddRequest{
		Attachment: attachmentOf(conf.network, args), Netns: args.Netns, Pod: pod, MTU: uint32(conf.MTU),
		Annotations: conf.RuntimeConfig.Annotations.known, Pool: conf.Pool,
	}
	var before *current.Result
	if isSet(conf.PrevResult) {
		if before, err = conf.resultIn(conf.PrevResult); err != nil {
			return err
		}
		own, _, err := addressesIn(before, args)
		if err != nil {
			return err
		}
		request.Previous = &wire.Previous{Addresses: own}
	}
	reply, err := conf.add(request)
	if err != nil {
		return err
	}
	result := before
	if result == nil {
		result, err = resultOf(reply, args.Netns, conf)
	}
	if err != nil {
		return err
	}
	if err := types.PrintResult(result, conf.CNIVersion); err != nil {
		return types.NewError(types.ErrIOFailure, "writing the result", err.Error())
	}
	return nil
}

// add makes the call of ADD.
func (c addConf) add(request wire.AddRequest) (reply wire.AddReply, err error) {
	answer, err := c.call("Add", request.Encode())
	if err != nil {
		return reply, err
	}
	if err := reply.Decode(answer); err != nil {
		return reply, types.NewError(types.ErrInternal, "berthd answered with something else than an attachment", err.Error())
	}
	if reply.Chained != (request.Previous != nil) {
		return reply, types.NewError(types.ErrInternal, "berthd took no notice of prevResult; are plugin and daemon of the same release?", "")
	}
	return reply, nil
}

// del asks for no more of the configuration than it needs, so that a pod can
// still be removed after a bad edit.
func del(args *skel.CmdArgs) error {
	conf, err := parseNetwork(args.StdinData)
	if err != nil {
		return err
	}
	if _, err = conf.call("Del", wire.DelRequest{Attachment: attachmentOf(conf, args), Netns: args.Netns}.Encode()); err != nil {
		return err
	}
	return checkNotOwn(args) // last: what can be removed is
}

// check compares what the runtime remembers with what the daemon and the
// kernel know.
func check(args *skel.CmdArgs) error {
	conf, err := parseNetwork(args.StdinData)
	if err != nil {
		return err
	}
	before, err := conf.previousResult(args.StdinData)
	if err != nil {
		return err
	}
	addresses, links, err := addressesIn(before, args)
	if err != nil {
		return err
	}
	_, err = conf.call("Check", wire.CheckRequest{Attachment: attachmentOf(conf, args), Netns: args.Netns, Addresses: addresses, Links: links}.Encode())
	return err
}

// gc releases what is not among the valid attachments.
func gc(args *skel.CmdArgs) error {
	conf, err := parseNetwork(args.StdinData)
	if err != nil {
		return err
	}
	valid, err := validAttachments(args.StdinData)
	if err != nil {
		return err
	}
	_, err = conf.callOnce("GC", wire.GCRequest{Network: conf.Name, Valid: valid}.Encode())
	return err
}

// status asks whether the node takes pods. A daemon that is being restarted
// counts as one that does: see package heartbeat.
func status(args *skel.CmdArgs) error {
	conf, err := parseNetwork(args.StdinData)
	if err != nil {
		return err
	}
	return conf.callStatus()
}

func attachmentOf(conf network, args *skel.CmdArgs) wire.Attachment {
	return wire.Attachment{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName}
}

// callStatus is nil when the node takes pods, or took them less than a minute
// ago and its daemon does not answer: a STATUS that failed while berthd is
// restarted would get the node's pods evicted.
func (n network) callStatus() error {
	within := min(statusTimeout, n.timeout())
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	conn, err := n.dial(ctx)
	if err != nil {
		if n.restarting() {
			return nil
		}
		return n.notAvailable(n.unreachable(err))
	}
	_, err = unary.Call(ctx, conn, service+"Status", wire.StatusRequest{Network: n.Name}.Encode())
	switch unary.CodeOf(err) {
	case unary.OK:
		return nil
	case unary.Unavailable, unary.DeadlineExceeded:
		if n.restarting() {
			return nil
		}
		return n.notAvailable(n.failed(err, within))
	}
	return n.failed(err, within)
}

// checkNetns refuses what the daemon could not tell: a path that means
// something else there, and the namespace that the plugin itself runs in,
// which is the host's.
func checkNetns(args *skel.CmdArgs) error {
	if !filepath.IsAbs(args.Netns) {
		return failf(types.ErrInvalidEnvironmentVariables, "CNI_NETNS is %q, expected an absolute path", args.Netns)
	}
	return checkNotOwn(args)
}

// checkNotOwn refuses the namespace that the plugin itself runs in. It opens
// nothing: who opens a FIFO waits for its other end. Nor does skel, which would
// compare once more.
func checkNotOwn(args *skel.CmdArgs) error {
	if o := args.NetnsOverride; o == "1" || strings.EqualFold(o, "true") {
		return nil
	}
	args.NetnsOverride = "1"
	var given, own unix.Stat_t
	if err := unix.Stat(args.Netns, &given); err != nil {
		return nil //nolint:nilerr // for the daemon to say
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return types.NewError(types.ErrInvalidNetNS, "looking at the plugin's own network namespace", err.Error())
	}
	if given.Dev == own.Dev && given.Ino == own.Ino {
		return failf(types.ErrInvalidNetNS, "CNI_NETNS %s is the namespace that the plugin runs in, expected the pod's own", args.Netns)
	}
	return nil
}
