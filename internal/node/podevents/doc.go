// Package podevents tells Pods, by Events, what becomes of their ADDs: that one
// waits and why, that it failed, and that the address came after all. `kubectl
// describe pod` shows them.
//
//	news.go    what the daemon has to tell
//	kinds.go   the Event that each kind of news is
//	remedy.go  what a person can do, by the cause
//	note.go    the text
//	book.go    which news is written when, and which never (no I/O)
//	teller.go  the edge: takes news at once, writes Events by and by
//
// A Teller never makes an ADD wait, keeps a bounded number of small things, and
// makes a bounded number of requests. What it cannot write is dropped and counted:
// the kubelet tries a failed ADD again, and then there is news again.
package podevents

// What berthd may do in the Kubernetes API of node mode: write Events and read
// none. An admission policy narrows it to those of Pods that name its own node
// (templates/admission/podevents.yaml of the chart). The sources of the other modes
// generate their roles with this one in it.
//
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../deploy/chart/files/rbac/node/berthd
