// Package cni is the plugin: it turns CNI verbs (specification versions 0.3.1
// to 1.1.0) into calls to berthd and the answers into CNI results. It holds no
// state and needs no privilege but to reach the daemon's socket.
//
// The plugin is started for every ADD and DEL, so that what it imports is paid
// for each time: see packages unary and wire. It handles no signals on purpose: when the
// runtime ends it, the kernel closes its connection, and berthd drops the call.
package cni

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

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
