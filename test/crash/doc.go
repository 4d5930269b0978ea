// Package crash holds the tests of what no crash may break (design, "Rules
// that no crash may break"), in every mode: programs are killed at every
// failpoint, then at random among faults of the cloud, and every time the
// kernel, the records on disk, introspection, the lab's EC2 and the
// API's objects must come to agree again, with no address handed out twice and
// nothing leaked.
//
// A soak (TestSoak) is one short round of two modes, or with flags any number
// of rounds (make soak): options has the flags, tally what is counted, and
// report what it says at its end.
package crash
