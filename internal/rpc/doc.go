// Package rpc is the protocol between the CNI plugin and the node daemon:
// gRPC over a unix socket.
//
// The plugin itself uses packages unary and wire in place of grpc-go and the
// protobuf runtime: it starts for every pod, and their initialisation is most
// of what it would cost. Their tests hold them to this package.
package rpc

import (
	"github.com/berthnet/berth/internal/rpc/wire"
)

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative berth.proto

// Get returns the annotation of a key, also one that a plugin of the first release
// told in its way. ok reports whether the pod has it.
func (x *Annotations) Get(key string) (value string, ok bool) {
	if value, ok = x.GetAll()[key]; !ok && key == wire.AnnotationPool {
		value = x.GetPool()
		ok = value != ""
	}
	return value, ok
}
