// Package wire is the messages between the CNI plugin and the node daemon,
// without the service and so without grpc-go. It is generated from wire.proto
// by `go generate` in package rpc.
package wire
