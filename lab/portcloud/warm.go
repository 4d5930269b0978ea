package portcloud

import "strings"

// WarmFor is the UID of the VPC object in whose warm pool a port is, by what Berth writes on it
// (docs/ports.md); ok is false for others.
func (p Port) WarmFor() (vpcUID string, ok bool) {
	_, of, ok := strings.Cut(p.Device, ":warm/")
	vpcUID, _, whole := strings.Cut(of, "/")
	return vpcUID, ok && whole && p.Owner == berthOwner
}
