// Package rpc is the protocol between the CNI plugin and the node daemon:
// gRPC over a unix socket.
package rpc

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative berth.proto
