// Package resolve tracks which pods policies select and which addresses their sets contain, while pods, namespaces, nodes
// and policies change. The cost of a change depends only on what it affects: a pod is compared with the selectors that can
// select pods of its namespace. The package is pure, and not safe for concurrent use.
//
//	resolver.go   the state, and the effects of a change
//	selection.go  one selector with the objects that it selects
package resolve
