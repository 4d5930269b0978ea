// Package networkpolicy enforces network policies for the pods of a node: it follows what the operator says about them
// (package wire), and keeps the kernel's table (package policytable) as that says. It stores what it was told, so that
// policies are in force after a restart or a reboot while the operator is away.
//
//	enforcer.go  what is known, which pods run, and the one goroutine that changes the kernel
//	follow.go    the operator's word
//	stored.go    the file
//	denied.go    the log of denied connections
package networkpolicy
