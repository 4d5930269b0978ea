// Package virtual runs Berth's programs inside the test's process, in virtual time (testing/synctest),
// and halts one at every failpoint: a halted program has no effect any more, as if the process had
// been killed, and another one continues with the same files, fake kernel and fake cloud. Package
// crash kills real processes at a sample of the steps, for half-written files, descriptors, locks, the
// real kernel and the order of a start. world_test.go has the lives of a program, node_test.go and
// cluster_test.go the programs, pods_test.go and nics_test.go the runtime, rest_test.go what must hold
// at rest; the other files are about one behaviour each.
package virtual
