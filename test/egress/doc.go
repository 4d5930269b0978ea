// Package egress tests Egresses in a data centre with gateways and clients, in a virtual machine whose
// kernel has Foo-over-UDP. The tests take minutes, and are for `make e2e`. They share one lab
// (fixture_guest_test.go), with an Egress each, and helpers for long and new connections
// (traffic_guest_test.go).
package egress
