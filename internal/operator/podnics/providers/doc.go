// Package providers is the operator's controller of VPC objects: it opens the provider of each VPC by its
// spec and its Secret, looks its network up, and writes its status. Other controllers get the open VPCs
// from podnics.Networks.
//
//	controller.go  the controller: what it watches, and what wakes it
//	reconcile.go   one VPC: opened, looked up, deleted
//	access.go      how each kind of provider is reached, by a spec and a Secret
//	secrets.go     the Secrets, each read and watched by its name
//	open.go        open providers; those of one endpoint share its limit of concurrent calls; their health
//	look.go        the network as the provider describes it
//	verdict.go     what that means for conditions: decisions
//	status.go      the status, Events, the log and metrics
//
// The operator reads Secrets in its own namespace only, each by the name that a VPC gives, and keeps what a
// provider needs of them. No text from a provider shows them: the provider removes them.
package providers
