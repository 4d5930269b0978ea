// Package kubeapi is how a daemon's address source uses the Kubernetes API:
// client-go's REST client with Berth's own kinds, metadata of others, and
// reflectors that keep nothing. A daemon has 40 MiB to live in
// (docs/design.md, "Budgets"), which leaves no room for typed clients of all of
// Kubernetes, nor for caches of objects of which a few bytes matter.
//
//	client.go   the requests
//	follow.go   lists and watches
//	mirror.go   what a part of the daemon keeps of objects, and outages
//	report.go   what a part of the daemon writes into the status of objects
//	cluster.go  Kubernetes' own objects, for all parts of a daemon
//	events.go   Events of Pods
package kubeapi
