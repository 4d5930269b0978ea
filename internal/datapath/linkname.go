package datapath

// IsHostLinkName tells whether HostLinkName could have made the name. No pod's
// link has another.
func IsHostLinkName(name string) bool { return isLinkName(name) }
