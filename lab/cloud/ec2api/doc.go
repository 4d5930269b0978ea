// Package ec2api serves a vpc.Cloud as the EC2 Query API: signed form posts in,
// XML out, with EC2's parameters, errors, filters and pages (Amazon EC2 API
// Reference, version 2016-11-15). Any AWS SDK or the aws command can use it
// through an endpoint URL.
//
// A parameter that an action of the lab does not know is refused with
// UnknownParameter, so that a client never believes it had an effect.
package ec2api
