// Package providers is the operator's side of VPC objects: it opens the provider of each by its
// spec and its Secret, looks its network up, and says in its status how that does. Others
// get what is open by vpcport.Networks.
//
//	controller.go  the controller: what it watches, and what wakes it
//	reconcile.go   one VPC: opened, looked at, deleted
//	drain.go       the warm pool of one that is being deleted
//	access.go      how to reach a provider, by a spec and a Secret: a decision
//	neutron.go     the same for Neutron
//	alcor.go       the same for Alcor
//	ec2.go         the same for EC2
//	secrets.go     the Secrets, each read by its name
//	open.go        providers, and the lanes that those of one endpoint share
//	look.go        what the provider says of the network
//	verdict.go     what that means for conditions: a decision
//	pin.go         whether it still is the network and the project of before: a decision
//	health.go      what came of everybody's calls
//	book.go        what is open, for others
//	status.go      what people see of it
//	metrics.go     the metrics
//
// The operator reads Secrets of its own namespace only, each by the name that a VPC
// gives, and keeps of them what a provider needs. No text that comes from a provider
// shows them: the provider takes them out.
package providers
