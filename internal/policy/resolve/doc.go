// Package resolve keeps which pods policies select and which addresses their sets contain, while
// pods, namespaces, nodes and policies change. Each change costs what it concerns: a pod is compared with
// the selectors that may select pods of its namespace. It is pure: one goroutine calls it, values
// go in and come out.
//
//	resolver.go   what is known, and what a change of it changes
//	selection.go  one selector with what it selects
package resolve
