// Package cni is the plugin: it turns CNI verbs (specification versions 0.3.1 to 1.1.0) into calls to
// berthd, and the replies into CNI results. It has no state, and needs no privilege except for access
// to the daemon's socket.
//
// The plugin is started for every ADD and DEL, so each import costs time: see packages unary and wire.
// It deliberately handles no signals: when the runtime kills it, the kernel closes its connection, and
// berthd cancels the call.
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

// add attaches an interface and prints the result. After another network's plugins it prints their
// result unchanged.
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
		return reply, types.NewError(types.ErrInternal, "berthd's reply is not an attachment", err.Error())
	}
	if reply.Chained != (request.Previous != nil) {
		return reply, types.NewError(types.ErrInternal, "berthd ignored prevResult; are plugin and daemon of the same release?", "")
	}
	return reply, nil
}

// del reads only the part of the configuration that it needs, so that a pod can be removed after an invalid edit of the
// configuration.
func del(args *skel.CmdArgs) error {
	conf, err := parseNetwork(args.StdinData)
	if err != nil {
		return err
	}
	if _, err = conf.call("Del", wire.DelRequest{Attachment: attachmentOf(conf, args), Netns: args.Netns}.Encode()); err != nil {
		return err
	}
	return checkNotOwn(args) // last, so that everything else is removed
}

// check compares the prevResult with the daemon's record and the kernel.
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

// gc releases all attachments that are not valid.
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

// status reports whether the node takes pods, also during a restart of the daemon: see package
// heartbeat.
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

// callStatus returns nil when the node takes pods, or when it did less than a minute ago and the
// daemon does not answer: a STATUS that failed during a restart of berthd would get the node's pods
// evicted.
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

// checkNetns rejects a path that means something else to the daemon, and the plugin's own namespace,
// which is the host's.
func checkNetns(args *skel.CmdArgs) error {
	if !filepath.IsAbs(args.Netns) {
		return failf(types.ErrInvalidEnvironmentVariables, "CNI_NETNS is %q, expected an absolute path", args.Netns)
	}
	return checkNotOwn(args)
}

// checkNotOwn rejects the plugin's own namespace. It does not open the path, as opening a FIFO blocks.
// skel skips its own comparison.
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
		return types.NewError(types.ErrInvalidNetNS, "read the plugin's own network namespace", err.Error())
	}
	if given.Dev == own.Dev && given.Ino == own.Ino {
		return failf(types.ErrInvalidNetNS, "CNI_NETNS %s is the namespace that the plugin runs in, expected the pod's own", args.Netns)
	}
	return nil
}
