// Package vpcport is VPC ports as the rest of Berth sees them: values for ports, networks
// and subnets, the calls that Berth makes on them, and the classes into which a call's
// failure falls. It knows neither Kubernetes nor a provider's API; the folders below
// implement Provider.
//
//	provider.go  the calls, and what each promises
//	port.go      ports and what is asked of them
//	network.go   networks and subnets
//	owner.go     by what a port is known as Berth's, and as whose
//	check.go     a port held against what was asked for
//	text.go      texts that providers bound
//	errors.go    classes of failures
//	policy.go    what is to be done about each
package vpcport

import (
	"context"
	"time"
)

// Provider is what Berth asks of a provider of VPC ports. Methods may be called
// concurrently. Each is one attempt, and ends with ctx: nothing is repeated inside but
// what changes nothing, such as a request that was refused for an old token. Every error
// is (or wraps) an *Error, so that ClassOf tells what to do about it. Replies are held
// against what was asked; one that cannot be true is an error of class Bug.
type Provider interface {
	// Network describes a network, by its ID or by its name if it is the only one of
	// that name, with all its subnets. Without one the class is NetworkGone, with
	// several Invalid.
	Network(ctx context.Context, idOrName string) (Network, error)
	// Ports lists the ports that match, completely and in no order. There is no error
	// for what a filter names and does not exist. It may trail changes; Get does not.
	Ports(ctx context.Context, f Filter) ([]Port, error)
	// Get describes one port as of now. Without it the class is PortGone.
	Get(ctx context.Context, id string) (Port, error)
	// Create makes all of the ports or, with an error, none; but for the classes
	// Transient, Bug (an answer that cannot be true) and Forbidden (what was made cannot
	// be seen), after which the ports may exist: the caller looks before it asks again. There are
	// no more than Traits.MaxBatch. The answer is in the order of the request.
	Create(ctx context.Context, ports []NewPort) ([]Port, error)
	// Update changes one port if its revision still is the one given; else the class
	// is Stale. Revision 0 changes it in any case, and a provider without revisions
	// (Traits.Revisions) always does. A host at which the provider cannot bind is no
	// error: the answer says BindingFailed.
	Update(ctx context.Context, id string, revision int, c Change) (Port, error)
	// Delete deletes a port, bound or not. One that is gone is no error.
	Delete(ctx context.Context, id string) error
	// Project is the ID of the project whose ports the credentials see: of one that is
	// another project's a provider may say that there is none. Without credentials it is
	// the project that ports are made in. It is as of the last call that was let in.
	Project(ctx context.Context) (string, error)
	// Traits are what the provider can do. They do not change.
	Traits() Traits
}

// Resolver is a provider that tells beforehand what a port will be like.
type Resolver interface {
	// Resolve tells what a port would be like that was asked for now.
	Resolve(ctx context.Context, n NewPort) (Resolved, error)
}

// Resolved is what a port that is asked for may be like.
type Resolved struct {
	Subnets []string // IDs: it is in one of them
	Groups  []string // IDs: it has all of them
}

// Traits are what a provider can do.
type Traits struct {
	MaxBatch  int  // ports of one Create, at least 1
	MaxFilter int  // values of a list in a Filter, at least 1
	ChosenMAC bool // NewPort.MAC is taken, and refused with class MACTaken where a port of the network has it
	Revisions bool // Update heeds revisions
	// NeedsHost: a port cannot be made before it is known where it is to be bound
	// (NewPort.Host).
	NeedsHost bool
	// Idempotent: a repeat of a Create, of the same port for the same device, makes no
	// second one, whether its reply was lost or not.
	Idempotent bool
	// OneEach: a port has one address of each family. What else the provider shows somebody else gave it, and
	// is not for the NIC.
	OneEach bool
	// AtOnce is how many calls may well be under way at once, as something below knows better
	// how many the provider bears; 0: as whoever makes them thinks right.
	AtOnce int
	// Warm: ports can be made before a NIC needs them, as one is as good as another of the
	// same request. The provider is a Resolver then.
	Warm bool
	// Cooling is how long a port that nobody has any more is kept until it is deleted, so
	// that its address is not soon another's. 0: not at all.
	Cooling time.Duration
}
