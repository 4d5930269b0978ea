package daemon

import (
	"context"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/source"
)

// NICs are interfaces of pods that are ports of a VPC. An attachment has them beside
// the lease of its source, or in its place. All methods may be called concurrently, but
// those that are given a record only while the lock of its container is held.
type NICs interface {
	// Annotations are the keys of pods' annotations that are looked at, as
	// source.Source.Annotations.
	Annotations() []string
	// CheckWish refuses, before anything is done about an ADD, what no pod can have.
	// The error names the annotation and what was expected.
	CheckWish(req source.Request) error
	// Acquire returns the NICs that the pod is to have, once all of them are bound to
	// this node: none for a pod that asks for none. When ctx ends first the error is an
	// *source.Exhausted that names the port, its host and its status. It takes nothing:
	// there is nothing to give back after it.
	Acquire(ctx context.Context, req source.Request) ([]attachment.NIC, error)
	// Why tells what the Acquire of key waits for; nil when none waits.
	Why(key attachment.Key) *source.Exhausted
	// Plug puts a NIC of a recorded attachment into its pod, and returns it with what
	// the kernel tells of it. It is idempotent, and finishes what is half done.
	Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error)
	// Await returns once all NICs of the attachment carry packets, or ctx ends; the
	// error then is an *source.Exhausted.
	Await(ctx context.Context, rec attachment.Record) error
	// Unplug takes a NIC away with all that Plug made, also what is half there, and in
	// a namespace that is gone. It is idempotent.
	Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Check tells how the kernel differs from a NIC, and changes nothing.
	Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error
	// Plugged says that the attachment is ready with its NICs: at its ADD, and at
	// start for each record that is. Told to the operator behind the caller's back.
	Plugged(rec attachment.Record)
	// Unplugged says that nothing is left of NICs on the node; told until it is heard.
	Unplugged(rec attachment.Record)
	// Sweep takes away what is plugged on the node and of no known record. Called once
	// at start, after the records were read.
	Sweep(ctx context.Context, known []attachment.Record) error
	// Run follows what the operator says until ctx ends, and returns only then.
	Run(ctx context.Context) error
}
