// Package neutron is a provider of VPC ports: OpenStack Networking (Neutron, API v2.0)
// behind Keystone v3 or without it. Requests go by gophercloud, which has the token and
// gets another one, once, when Neutron no longer takes it. Nothing else is repeated.
//
// What it needs of Neutron are the extensions binding, security-group, sorting,
// pagination, standard-attr-revisions and revision-if-match, all of which ML2 has since
// Pike; of the credentials, besides making and deleting ports, the rules
// create_port:binding:host_id, update_port:binding:host_id, get_port:binding:host_id,
// get_port:binding:vif_type and get_port:binding:vif_details, and create_port:mac_address
// where MAC addresses are asked for.
//
//	settings.go   where Neutron is, and who asks
//	auth.go       tokens, and Neutron's URL from the catalog
//	call.go       one request
//	errors.go     failures into classes
//	conceal.go    errors without credentials and tokens
//	wire.go       requests and replies as they are sent
//	binding.go    how a bound port is plugged
//	network.go    Provider.Network
//	pages.go      listings, page by page
//	list.go       Provider.Ports and Get
//	create.go     Provider.Create
//	change.go     Provider.Update and Delete
//	settle.go     what the answer to a binding does not tell
package neutron
