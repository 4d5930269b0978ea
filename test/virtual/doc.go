// Package virtual runs Berth's programs inside the test's process, in virtual time
// (testing/synctest), and halts one at every failpoint: a program that is halted has no
// effect any more, as if the process had been killed, and another one goes on from the same
// files, with the same fake kernel and cloud. It covers every step; package crash kills real
// processes at a sample of them, for half-written files, descriptors, locks, the real kernel
// and the order of a start.
//
//	world_test.go      a program's life, and how it is halted
//	node_test.go       a node whose daemon is halted and started again
//	cluster_test.go    a control plane whose operator is halted and started again
//	pods_test.go       what a runtime asks of the daemon, and who has which address
//	nics_test.go       pods with NICs, and what must be true of them at rest
//	ports_test.go      port mode
//	branches_test.go   warm branches
//	rest_test.go       what must be true at rest
//	failpoints_test.go the failpoints, each in turn
//	egress_test.go     those of egress: Egresses, gateways and pods that use them
package virtual
