// Package warm keeps the warm pool: VPC ports created before a NIC needs them, so that pods do not wait for the provider. For each node
// and each kind of request that its pods' NICs make (Kind), the pool has one or a few ports, as long as NICs make such requests and for
// a while afterwards, but never so many that NICs would lack room.
//
//	plan.go    kinds of ports, and how many of each a node is to have (pure decisions)
//	pool.go    the known ports and NICs; taking a port
//	fill.go    what to create and delete now, on all nodes
//	work.go    the calls
//	survey.go  ports of earlier operators, and ports that other clients changed
//	metrics.go the metrics
//
// No two NICs get the same port:
//
//   - A port is a NIC's once its PodNIC has the port's ID recorded (package nicplan). Only then do nodes learn of it, and only then is
//     the provider asked to mark it. Taking a port therefore needs no provider: pods start even if it does not answer.
//   - Within a process, a port is taken once, and never after an attempt to delete it. It is not offered again, whatever listings show.
//   - A process offers the ports that it created itself. Of the ports that it found, it offers those that no PodNIC at the API server
//     (not in the cache) has recorded, and that a listing shows late enough (Options.Settle) to rule out a deletion by an earlier
//     operator.
//   - A replaced operator that has not noticed may still record a port in one PodNIC that its successor gives to another one. The port
//     then stays with the NIC that the provider knows or, before that, with the one whose node has it plugged, or with the older one;
//     the other NIC gets another port. A node plugs a port only once, whatever the PodNICs say.
//
// Nothing leaks. A port has the pool's mark, with the UID of its VPC object, from its creation: any operator finds it in a listing. A
// VPC object is deleted after its ports (package providers), and whoever creates a port meanwhile deletes it. Ports of a VPC object that
// lost its finalizer are collected like those of deleted PodNICs (the collector of package podnics), as long as another VPC object has
// the same network.
//
// A port that no NIC has had need not cool down. A port that a NIC has had never returns to the pool.
package warm
