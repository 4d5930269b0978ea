// Package aws implements pace.Calls with the EC2 API and cloud.Metadata with the
// instance metadata service, through the official SDK.
//
// The SDK signs, sends and parses; what to do about a failure is decided by
// package pace, because it depends on whether a call may be repeated:
//
//	throttled        no effect; the limiter slows down and the call is made again
//	transient        repeated when the call is idempotent, else reported: its
//	                 effect is unknown and the caller has to look first
//	expired          credentials are fetched again, and the call made once more
//	everything else  reported at once, sorted into the classes of package cloud
//
// Idempotent are the describe calls, a creation (it always carries a client
// token), and calls that name what they take away or set: delete, detach,
// unassign, modify and tag. Not idempotent are attaching and assigning a number
// of addresses.
//
// Package pace also learns the rates that EC2 grants from the calls that EC2
// refuses.
package aws
