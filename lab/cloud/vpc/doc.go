// Package vpc keeps the books of a virtual cloud: its VPCs, subnets, security
// groups, instances and network interfaces, and the rules by which EC2 lets
// them change. It speaks no protocol; packages ec2 and imds serve it over HTTP
// and the fabric turns its events into links and routes.
//
// A Cloud keeps everything behind one lock. Each resource is an immutable
// value with a history, so that a describe call or the metadata service can be
// answered with the world as it was a moment ago.
package vpc
