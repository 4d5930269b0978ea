// Package feed decides what each node is told about network policies: its own pods with the policies that select them,
// these policies, and the sets that they name. A node is told nothing about other pods but the addresses in
// those sets. What it is told changes by what changed, and several changes that meet before a node takes them are one.
//
//	feed.go        the cluster, and who has to hear of a change of it
//	subscriber.go  one node: what it was told, and what it has to be told next
//	log.go         the latest changes of one set
//	address.go     addresses of new pods, and until when those who allow them enforce that
package feed
