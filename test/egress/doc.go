// Package egress has whole flows of Egress as tests: a data centre with gateways and clients, in a virtual
// machine whose kernel has Foo-over-UDP, and what goes wrong there. All of it takes minutes, and is for
// `make e2e`.
//
//	fixture_guest_test.go   the lab, one for all tests, and an Egress for each
//	traffic_guest_test.go   connections that go on, and new ones in a steady flow
//	trouble_guest_test.go   troubles
//	live…_test.go           changes under pods that run, and first connections
package egress
