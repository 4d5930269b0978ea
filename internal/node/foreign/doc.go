// Package foreign finds addresses on a node that are held by software other than Berth, and their holders: from the node's
// routes and links, the state files of other pod networks, and network namespaces. It decides over values, and reads only
// small files itself.
package foreign
