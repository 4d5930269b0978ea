// Package warm keeps the warm pool: VPC ports that were created before a NIC needs them, so that pods do not wait
// for the provider. For each node and each request that the NICs of its pods make (Kind) there is one
// port or a few, as long as NICs make that request and for a while after, but never so many that
// NICs would lack the room.
//
//	plan.go    kinds of ports, and how many of each a node is to have: decisions
//	pool.go    the ports and the NICs that are known; taking a port
//	fill.go    what is to be created and deleted now, on all nodes
//	work.go    the calls
//	survey.go  ports of earlier operators, and ports that other clients changed
//	metrics.go the metrics
//
// No two NICs get one port:
//
//   - A port is a NIC's once its PodNIC has the port's ID recorded (package nicplan). Only then does
//     a node learn of it, and the provider, whose mark follows. Taking a port therefore needs no
//     provider: pods start while it does not answer.
//   - Within a process a port is taken once, and never after its deletion was tried. It is not
//     offered again, whatever listings show.
//   - A process offers the ports that it created itself. Of those that it found it offers the ones that no
//     PodNIC has recorded according to the API server, not the cache, and that a listing shows late
//     enough (Options.Settle) that an earlier operator has not deleted them.
//   - An operator that was replaced and does not know it may still record a port in one PodNIC that its
//     successor gives to another. The port then stays with the NIC that the provider knows or, before
//     that, with the one whose node has it plugged, or that is older; the other NIC gets another one. A
//     node plugs it once, whatever the PodNICs say.
//
// Nothing leaks. A port carries the pool's mark from the call on that creates it, with the UID of its VPC
// object: any operator finds it by a listing. A VPC object is deleted after its ports (package providers), and
// whoever creates a port meanwhile deletes it. Ports of a VPC object that lost its finalizer are collected
// like those of PodNICs that are gone (the collector of package podnics), as long as another VPC object
// has the same network.
//
// A port that no NIC had needs no time to cool. A port that a NIC had never returns to the pool.
package warm
