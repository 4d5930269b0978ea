// Package feed decides what each node is sent about network policies: its own pods with the policies that select them,
// these policies, and the sets that they name. Of other pods, a node is sent only the addresses in
// those sets. After the first update, it is sent only changes, and several changes that meet before a node takes them are one.
//
//	feed.go        the cluster, and who has to hear of a change of it
//	subscriber.go  one node: what it was sent, and what it is to be sent next
//	log.go         the latest changes of one set
//	address.go     addresses of new pods, and until when those who allow them enforce that
package feed
