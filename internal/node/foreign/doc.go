// Package foreign tells which addresses somebody other than Berth holds on a node, and who: by the node's routes and
// links, by what other pod networks remember, and by network namespaces. It decides over values; the little that it reads
// itself are small files.
package foreign
