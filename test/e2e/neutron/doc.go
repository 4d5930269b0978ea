// Package neutron holds the tests against a real OpenStack Networking (lab/openstack):
// that the provider of VPC ports keeps its contract with it, with OVN, behind Keystone and with
// Neutron's own agent; that the lab's imitation answers as it does; that ports which nodes plug
// carry packets; and that pods get them, keep them and give them back, in labs with berthd and
// berth-operator (flows_test.go: what the demo shows, and more). They are built with the tag e2e and run by make e2e, since they need the
// Debian packages of the group neutron of hack/deps.sh.
package neutron
