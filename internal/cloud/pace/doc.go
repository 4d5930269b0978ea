// Package pace decides when the calls of one process to a cloud may be sent,
// and how often each is repeated. It is between the callers of a cloud.API and
// what sends the calls, whether that is a client of EC2 or a cloud in memory.
//
// # Limits
//
// EC2 refuses calls for their rate, and tells neither the rate nor how full its
// buckets are. By its documentation each action has a bucket of its own (EC2
// Developer Guide, "Request throttling"); an account, or something in between,
// may have one for all actions too. A Set therefore is in one of two states:
//
//   - apart: each action has a pacer that learns from that action's refusals;
//   - shared: one pacer for all actions learns from all refusals, and of the
//     actions' own limits only the configured ceilings hold.
//
// What tells them apart is what happens to another action right after a
// refusal. Where the bucket is shared it is empty then, and another call is
// refused as well unless a token came in meanwhile, which the time since and
// the rate say how likely it is; where it is not, the call passes. See evidence.
//
// # Order
//
// Calls that wait go by cloud.Priority, those of equal priority in the order in
// which they came, and a call that was refused keeps its place. Two exceptions
// keep anything from waiting for ever: now and then the oldest call of an
// action goes first, and in the shared state the action that was served the
// longest ago.
//
// A call that begins something new, the creation of an ENI below
// cloud.Begun, waits while a call of priority Begun does, for whatever
// action: what was begun is finished first.
package pace
