// Package egress has whole flows of Egress as tests: a data centre with gateways and clients, in a virtual
// machine whose kernel has Foo-over-UDP, and what goes wrong there. What `make test` runs has the build tag
// guest; what takes long has the tag e2e too, for `make e2e`.
//
//	fixture_guest_test.go   the lab, one for all tests, and an Egress for each
//	traffic_guest_test.go   connections that go on, and new ones in a steady flow
//	trouble_guest_test.go   troubles that take minutes (make e2e)
//	live…_test.go           changes under pods that run, and first connections (make e2e)
package egress
