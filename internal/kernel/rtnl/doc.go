// Package rtnl has what Berth's packages that program network namespaces have in
// common: opening a namespace and running in it, the small words in which they speak
// to the netlink library, and the routes and rules of a pod with several interfaces.
// It decides nothing and keeps nothing.
package rtnl

import "errors"

// Errors that a caller tells apart with errors.Is.
var (
	// ErrNoNetns: the network namespace does not exist (any more).
	ErrNoNetns = errors.New("network namespace does not exist")
	// ErrNotNetns: something else is at the path of a network namespace.
	ErrNotNetns = errors.New("is not a network namespace")
)

// Protocol marks every route and rule that Berth makes (rtnetlink's rtm_protocol and
// FRA_PROTOCOL).
const Protocol = 190

// PortGroup is the link group (IFLA_GROUP) of the links of ports and branches (package plug). It is below those
// of pod links, which begin with Protocol times 2^16.
const PortGroup = Protocol<<16 - 1
