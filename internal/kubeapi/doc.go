// Package kubeapi is a daemon's access to the Kubernetes API: client-go's REST client with Berth's own kinds, metadata of
// other kinds, and reflectors without a cache. A daemon has 40 MiB of memory (docs/design.md, "Budgets"), too little for
// typed clients of all of Kubernetes, or for caches of objects of which a few bytes matter.
//
//	client.go   the requests
//	follow.go   lists and watches
//	mirror.go   what a part of the daemon keeps of objects, and outages
//	report.go   what a part of the daemon writes into the status of objects
//	cluster.go  Kubernetes' own objects, for all parts of a daemon
//	events.go   Events of Pods
package kubeapi
