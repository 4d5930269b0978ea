// Package wire is how the operator tells nodes about network policies, and how a node stores what it was told. An
// update is sent in parts, none of which has more than a thousand elements of sets.
package wire

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative policies.proto
