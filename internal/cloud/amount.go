package cloud

// Amount is a number of addresses and prefixes for pods, as they are asked of
// EC2 or given back to it: single IPv4 addresses, IPv4 /28 prefixes, single
// IPv6 addresses and IPv6 /80 prefixes.
type Amount struct {
	Addresses, Prefixes int
	IPv6, IPv6Prefixes  int
}
