// Package imds serves the instance metadata service of a vpc.Cloud, versions 2
// (with session tokens) and 1 (EC2 User Guide, "Use instance metadata to
// manage your EC2 instance"). It lags behind EC2 by the cloud's IMDS delay and
// hands out the expiring credentials of the instance's role.
package imds
