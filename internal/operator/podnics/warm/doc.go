// Package warm keeps VPC ports that were made before any NIC needs them, so that a pod does not
// wait for its provider: the warm pool. There is one port or a few for each node and for each
// request that NICs of pods on that node make (Kind), as long as they do and for a while after;
// never so many that NICs would lack the place.
//
//	kind.go    which ports are as good as another
//	plan.go    how many of which there are to be on a node: a decision
//	nics.go    what is known of NICs
//	pool.go    the ports that there are, and taking one
//	fill.go    what is to be made and deleted now, of all nodes
//	work.go    the calls
//	survey.go  ports of operators before this one, and what others did to ports
//	metrics.go the metrics
//
// That no two NICs get one port:
//
//   - A port is a NIC's once its PodNIC has the port's ID recorded (package plan). Only then does
//     a node learn of it, and only then does the provider, whose mark follows. So taking one needs
//     no provider: pods start while that does not answer.
//   - Within a process a port is taken once, and none whose deletion was begun, whatever came of
//     that. It is never offered again, whatever listings show.
//   - A process offers what it made itself; and what it found, if the API server itself, and not
//     the cache, shows it recorded of no PodNIC, and if a listing shows it that would not if an
//     operator before had deleted it (Options.Settle).
//   - An operator that was replaced and does not know it may still record a port of one PodNIC
//     that its successor gives to another. Then it stays with the one that the provider was told
//     of or, before that, the one whose node has it plugged, or that is older; the other gets another. The node
//     plugs it once, whatever it is told.
//
// Nothing leaks. A port has the mark of the pool from the call on that makes it, with the UID of its
// VPC object: whoever leads finds it by a listing. A VPC object goes after its ports (package vpc), and
// what is made while it goes is deleted by whoever makes it. Of one whose finalizer somebody took off,
// ports are collected like those of PodNICs that are no more (the sweep of package vpcport), as long as
// another object is of the same network.
//
// A port that no NIC had needs no time to cool. One that a NIC had is never taken back.
package warm
