// Package crash holds the tests of what no crash may break (design, "Rules
// that no crash may break"): berthd is killed at every failpoint, then at
// random among faults of the cloud, and every time the kernel, the records on
// disk, introspection and the lab cloud's books must come to agree again, with
// no address handed out twice and nothing leaked.
//
// The seed of a random run is printed; BERTH_SOAK_SEED repeats its choices and
// BERTH_SOAK_OPS sets how many operations it makes.
package crash
