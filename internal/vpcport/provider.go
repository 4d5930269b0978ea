// Package vpcport is the provider-independent model of VPC ports: ports, networks and subnets, the calls that Berth makes, and the classes
// of failed calls. It depends neither on Kubernetes nor on a provider's API; the packages below it implement Provider.
package vpcport

import (
	"context"
	"time"
)

// Provider is a provider of VPC ports. Its methods may be called concurrently. Each call is one attempt and ends with ctx; a provider
// repeats only requests that had no effect, such as one refused because of an expired token. Every error is or wraps an *Error: ClassOf
// returns its class. Replies are compared with their requests; an impossible reply is an error of class Bug.
type Provider interface {
	// Network describes a network with all its subnets, by its ID or its name. The error has class NetworkGone if there is none, and Invalid if
	// several have the name.
	Network(ctx context.Context, idOrName string) (Network, error)
	// Ports lists all matching ports in any order. IDs in the filter that do not exist are no error. The listing may lag behind changes; Get
	// does not.
	Ports(ctx context.Context, f Filter) ([]Port, error)
	// Get describes the current state of one port. If the port does not exist, the error has class PortGone.
	Get(ctx context.Context, id string) (Port, error)
	// Create creates up to Traits.MaxBatch ports, in the order of the request. It creates all of them or, with an error, none. The exceptions
	// are the classes Transient, Bug (an impossible reply) and Forbidden (the new ports cannot be read): the ports may exist, and the caller
	// must check before it repeats the request.
	Create(ctx context.Context, ports []NewPort) ([]Port, error)
	// Update changes one port if it still has the given revision; otherwise the error has class Stale. It does not check revision 0, and a
	// provider without revisions (Traits.Revisions) never checks. A host to which the provider cannot bind is no error: the reply has
	// BindingFailed.
	Update(ctx context.Context, id string, revision int, c Change) (Port, error)
	// Delete deletes a port, bound or not. A port that does not exist is no error.
	Delete(ctx context.Context, id string) error
	// Project returns the ID of the project whose ports the credentials can see; a provider may claim that ports of other projects do not
	// exist. Without credentials it is the project in which ports are created. It is the project of the last authenticated call.
	Project(ctx context.Context) (string, error)
	// Traits returns the capabilities of the provider. They do not change.
	Traits() Traits
}

// Resolver is a provider that can predict the properties of a port.
type Resolver interface {
	// Resolve predicts the properties that a port would have if it were requested now.
	Resolve(ctx context.Context, n NewPort) (Resolved, error)
}

// Resolved is the prediction for a port.
type Resolved struct {
	Subnets []string // IDs: the port is in one of them
	Groups  []string // IDs: the port has all of them
}

// Traits are the capabilities of a provider.
type Traits struct {
	MaxBatch  int  // maximum number of ports per Create, at least 1
	MaxFilter int  // maximum number of values per list in a Filter, at least 1
	ChosenMAC bool // NewPort.MAC is used, or refused with class MACTaken if another port of the network has it
	Revisions bool // Update checks revisions
	// NeedsHost: a port can only be created for a known host (NewPort.Host).
	NeedsHost bool
	// Idempotent: a repeated Create for the same port and device creates no second port.
	Idempotent bool
	// OneEach: a NIC uses one address of each family. Other addresses of a port were added by other clients, and the NIC does not use them.
	OneEach bool
	// AtOnce is the maximum number of calls in flight, because a lower layer limits their rate; 0: the caller decides.
	AtOnce int
	// Warm: ports can be created before a NIC needs them, because ports of the same request are interchangeable. The provider is then a
	// Resolver.
	Warm bool
	// Cooling is how long an unused port is kept before it is deleted, so that its address is not reused immediately; 0: it is deleted
	// immediately.
	Cooling time.Duration
}
