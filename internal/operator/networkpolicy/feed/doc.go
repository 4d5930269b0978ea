// Package feed decides which data about network policies each node receives: its own pods with the names of their policies,
// these policies, and the sets in them. Of other pods, a node receives only the addresses in those sets. After the first
// update it receives only changes, and changes that accumulate before a node takes them are merged.
//
//	feed.go        the cluster, and the subscribers that a change affects
//	subscriber.go  one node: the data that it has, and its next update
//	log.go         the latest changes of one set
//	address.go     addresses of new pods, and the wait until nodes enforce them
package feed
