// Package wire is the protocol with which the operator sends network policies to nodes, and the format in which nodes store them.
// An update is sent in parts of at most a thousand set elements.
package wire

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative policies.proto
