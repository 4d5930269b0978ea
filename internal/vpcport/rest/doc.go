// Package rest is what providers of VPC ports over HTTP have in common: the client, with
// bounds of what is read; words of a server, cut for people; IDs in URLs; what a refusal is
// about.
//
//	client.go  TLS, time-outs, how much of a reply is read
//	url.go     endpoints
//	text.go    what a server says, for people
//	ids.go     IDs, and lists of them in URLs
//	about.go   what a refusal is about
package rest
