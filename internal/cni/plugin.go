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
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// Versions are those of the CNI specification that the plugin speaks.
var Versions = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

// Funcs are the verbs, for skel.PluginMainFuncs. Each returns nil or a *types.Error.
func Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status}
}

// add attaches an interface and prints the result.
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
	answer, err := conf.call("Add", wire.AddRequest{
		Attachment: attachmentOf(conf.network, args), Netns: args.Netns, Pod: pod, MTU: uint32(conf.MTU),
		Annotations: conf.RuntimeConfig.Annotations.known, Pool: conf.Pool,
	}.Encode())
	if err != nil {
		return err
	}
	var reply wire.AddReply
	if err := reply.Decode(answer); err != nil {
		return types.NewError(types.ErrInternal, "berthd answered with something else than an attachment", err.Error())
	}
	result, err := resultOf(reply, args.Netns, conf)
	if err != nil {
		return err
	}
	if err := types.PrintResult(result, conf.CNIVersion); err != nil {
		return types.NewError(types.ErrIOFailure, "writing the result", err.Error())
	}
	return nil
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
	addresses, links, err := previousAddresses(args, conf.CNIVersion)
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
