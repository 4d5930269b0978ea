// Package vpcport is the provider-independent model of VPC ports: ports, networks and subnets, the
// calls that Berth makes on them, and the classes into which failed calls fall. It knows neither
// Kubernetes nor the API of a provider; the packages below it implement Provider.
package vpcport

import (
	"context"
	"time"
)

// Provider is a provider of VPC ports. Its methods may be called concurrently. Each call is one
// attempt and ends with ctx; a provider repeats only requests that had no effect, such as one that
// was refused for an expired token. Every error is or wraps an *Error: ClassOf gives its class.
// Replies are compared with their requests; an impossible reply is an error of class Bug.
type Provider interface {
	// Network describes a network with all its subnets, by its ID or its name. The class of the
	// error is NetworkGone if there is none, and Invalid if several have the name.
	Network(ctx context.Context, idOrName string) (Network, error)
	// Ports lists all ports that match, in no order. IDs in the filter that do not exist are no
	// error. The listing may lag behind changes; Get does not.
	Ports(ctx context.Context, f Filter) ([]Port, error)
	// Get describes one port as it is now. If it does not exist, the class is PortGone.
	Get(ctx context.Context, id string) (Port, error)
	// Create makes up to Traits.MaxBatch ports, in the order of the request. It makes all of them
	// or, with an error, none. The exceptions are the classes Transient, Bug (an impossible reply)
	// and Forbidden (the new ports cannot be read): the ports may exist, and the caller must look
	// before it asks again.
	Create(ctx context.Context, ports []NewPort) ([]Port, error)
	// Update changes one port if it still has the given revision; else the class is Stale. It
	// does not check revision 0, and a provider without revisions (Traits.Revisions) never
	// checks. A host to which the provider cannot bind is no error: the reply has BindingFailed.
	Update(ctx context.Context, id string, revision int, c Change) (Port, error)
	// Delete deletes a port, bound or not. A port that does not exist is no error.
	Delete(ctx context.Context, id string) error
	// Project is the ID of the project whose ports the credentials can see; a provider may deny
	// that ports of other projects exist. Without credentials it is the project in which ports
	// are made. It is the project of the last call that was authenticated.
	Project(ctx context.Context) (string, error)
	// Traits are the capabilities of the provider. They do not change.
	Traits() Traits
}

// Resolver is a provider that can predict what a port will be like.
type Resolver interface {
	// Resolve predicts what a port would be like if it were requested now.
	Resolve(ctx context.Context, n NewPort) (Resolved, error)
}

// Resolved is the prediction for a port.
type Resolved struct {
	Subnets []string // IDs: it is in one of them
	Groups  []string // IDs: it has all of them
}

// Traits are the capabilities of a provider.
type Traits struct {
	MaxBatch  int  // ports of one Create, at least 1
	MaxFilter int  // values of a list in a Filter, at least 1
	ChosenMAC bool // NewPort.MAC is used, or refused with class MACTaken if another port of the network has it
	Revisions bool // Update checks revisions
	// NeedsHost: a port can only be made for a known host (NewPort.Host).
	NeedsHost bool
	// Idempotent: a repeated Create of the same port for the same device makes no second port.
	Idempotent bool
	// OneEach: a NIC uses one address of each family. Further addresses of a port were added by
	// other clients and are not for the NIC.
	OneEach bool
	// AtOnce is how many calls may be in flight, because a lower layer limits their rate; 0: the
	// caller decides.
	AtOnce int
	// Warm: ports can be made before a NIC needs them, because ports of the same request are
	// interchangeable. The provider is a Resolver then.
	Warm bool
	// Cooling is how long an unused port is kept before it is deleted, so that its address is not
	// reused at once; 0: it is deleted at once.
	Cooling time.Duration
}
