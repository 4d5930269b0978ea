// Package rpc is the protocol between the CNI plugin and the node daemon:
// gRPC over a unix socket.
//
// The service is here, the messages are in package wire, and aliased here: the
// plugin starts for every pod, and must be able to do so without grpc-go
// (package unary).
package rpc

import "github.com/berthnet/berth/internal/rpc/wire"

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative wire/wire.proto berth.proto

// Attachment and the others are the messages of the service; see package wire.
type (
	Attachment    = wire.Attachment
	Pod           = wire.Pod
	Interface     = wire.Interface
	Route         = wire.Route
	AddRequest    = wire.AddRequest
	AddReply      = wire.AddReply
	DelRequest    = wire.DelRequest
	DelReply      = wire.DelReply
	CheckRequest  = wire.CheckRequest
	CheckReply    = wire.CheckReply
	GCRequest     = wire.GCRequest
	GCReply       = wire.GCReply
	StatusRequest = wire.StatusRequest
	StatusReply   = wire.StatusReply
	Failure       = wire.Failure
)
