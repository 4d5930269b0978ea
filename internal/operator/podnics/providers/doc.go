// Package providers is the operator's controller of VPC objects: it opens the provider of each VPC by its spec and its Secret,
// looks up its network, and writes its status. Other controllers get the open VPCs from podnics.Networks.
//
//	controller.go  the controller, its watches and triggers
//	reconcile.go   one VPC: opening, lookup, deletion
//	access.go      how each kind of provider is reached, by a spec and a Secret
//	secrets.go     the Secrets, each read and watched by its name
//	open.go        open providers and their health; those of one endpoint share a limit of concurrent calls
//	look.go        lookup of the network at the provider
//	verdict.go     the resulting conditions (pure decisions)
//	status.go      the status, Events, the log and metrics
//
// The operator reads Secrets only in its own namespace, each by the name that a VPC gives, and keeps what a provider needs of
// them. No text from a provider reveals them: the provider package removes them.
package providers
