// Package networkpolicy enforces network policies for the pods of a node: it follows what the operator says about them
// (package wire), and keeps the kernel's table (package policytable) as that says. It stores what it was told, so that
// policies are in force after a restart or a reboot while the operator is away.
//
//	enforcer.go  what is known, which pods run, and the one goroutine that changes the kernel
//	follow.go    the operator's word
//	stored.go    the file
//	repair.go    what other software changes in the kernel
//	health.go    whether policies are in force, and the operator tells about them
//	metrics.go   the same as metrics
//	dial.go      how the operator is found and called
package networkpolicy
