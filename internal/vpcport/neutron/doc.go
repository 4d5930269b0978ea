// Package neutron is a vpcport.Provider of OpenStack Networking, by gophercloud. It uses
// API version 2.0 and what is in it since Newton, and asks for no microversion.
//
//	client.go   the connection, and how it is let in
//	requests.go the calls
//	ports.go    ports as Neutron writes them
//	errors.go   what its errors mean
//	bounds.go   how much of a reply is read
package neutron
