// Package neutron tests Berth with a real OpenStack Networking (lab/openstack): the provider's
// contract with OVN, with Neutron's own agent and behind Keystone; the answers of the lab's Neutron;
// packets of plugged ports; and pods with ports in labs with berthd and berth-operator. It has the tag
// e2e and is run by make e2e, as it needs the Debian packages of the group neutron of hack/deps.sh.
package neutron
