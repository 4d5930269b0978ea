// Package neutron holds the tests against a real OpenStack Networking (internal/lab/openstack):
// that the provider of VPC ports keeps its contract with it, with OVN, behind Keystone and with
// Neutron's own agent; that the lab's imitation answers as it does; and that ports which nodes
// plug carry packets. They are built with the tag e2e and run by make e2e, since they need the
// Debian packages of the group neutron of hack/deps.sh.
package neutron
