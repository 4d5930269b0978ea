// Package wire is the protocol by which the operator sends nodes network policies, and the format in which a node stores them. An
// update is sent in parts, none of which has more than a thousand elements of sets.
package wire

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative policies.proto
