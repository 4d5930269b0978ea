// Package egress holds the tests of Egresses as a whole: the real programs and the real API
// server, and packets in a kernel with Foo-over-UDP.
package egress
