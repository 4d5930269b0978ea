// Package pace makes a cloud.API of what sends single calls: the client of EC2, or
// a cloud in memory. It decides as which calls, such as the pages of a listing, a
// method is made (Cloud), when each may be sent, and how often (Set).
//
// # Limits
//
// EC2 refuses calls for their rate, and tells neither the rate nor how full its
// buckets are. By its documentation each action has a bucket of its own (EC2
// Developer Guide, "Request throttling for the Amazon EC2 API"); an account, or
// something on the way, may have one for all. A Set therefore is in one of two
// states:
//
//   - apart: each action has a pacer that learns from that action's refusals;
//   - shared: one pacer for all actions learns from all refusals, and of the
//     actions' own limits only the configured ceilings hold.
//
// How a pacer learns is in pacer.go. Which state is right shows between two
// refusals. If all actions share a bucket, it was empty at each of them,
// whatever the actions were; so in between as much passed as flowed into it, at
// the same rate every time. A refusal right after one of another action speaks
// for a shared bucket; one that comes when such a bucket had something in it, or
// more calls passing than its rate allows, speaks against it. See shared.go.
//
// # Order
//
// Calls that wait go by cloud.Priority, those of equal priority in the order in
// which they came, and a call that was refused keeps its place. So that nothing
// waits for ever, one turn in ten of an action goes to its oldest call once
// that has waited for half a minute; and in the state shared, one in ten goes to
// the action that was served the longest ago, so that a listing gets on beside
// a thousand creations.
//
// A call that begins something, the creation of an ENI with a priority below
// cloud.Begun, waits as long as any call of priority Begun has to, for whatever
// action: what was begun is finished first. Nothing else is held back by that,
// and nothing is lost by it either, since what waits is what limits the whole.
package pace
