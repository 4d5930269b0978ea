package plug

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// LinkGroup is the link group of the links that are made for ports.
const LinkGroup = rtnl.PortGroup

// Short is what of a port's ID is in the names of its links: the first 11 characters,
// as Neutron's agents and Alcor's expect. Two ports may share it. Of a VLAN it is as many of a
// hash: IDs of EC2, such as eni-0a1b2c3d4e5f67890, begin alike, and no agent looks for its links.
func (r Ref) Short() string {
	if r.Kind == VLAN || r.Kind == RoutedVLAN {
		sum := sha256.Sum256([]byte(r.PortID))
		return hex.EncodeToString(sum[:])[:PrefixLen]
	}
	return r.PortID[:PrefixLen]
}

// VLANPrefix begins the names of VLANs on the node: of those that stay there, and of those that have not
// got their names in their pods yet.
const VLANPrefix = "vl"

// VLANLink is what a port's VLAN is called on the node.
func (r Ref) VLANLink() string { return VLANPrefix + r.Short() }

// IsLinkOf tells whether a link on the node is called as those of a port are that has any there:
// tap, qbr, qvb or qvo, and the beginning of its ID.
func IsLinkOf(link, portID string) bool {
	const prefix = len("tap")
	return len(link) == prefix+PrefixLen && len(portID) >= PrefixLen && link[prefix:] == portID[:PrefixLen]
}

// Mark is what links that are made for a port carry as their alias.
func (r Ref) Mark() string {
	return strings.Join([]string{"berth", string(r.Kind), r.Attachment, r.PortID, r.Pod.IfName}, " ")
}

// ParseMark reads an alias that Mark made. More words may follow.
func ParseMark(alias string) (r Ref, ok bool) {
	parts := strings.Split(alias, " ")
	if len(parts) < 5 || parts[0] != "berth" {
		return Ref{}, false
	}
	r = Ref{Kind: Kind(parts[1]), Attachment: parts[2], PortID: parts[3], Pod: Pod{IfName: parts[4]}}
	ok = validMark(r.Attachment) && validID(r.PortID) && len(r.PortID) >= PrefixLen && rtnl.ValidName(r.Pod.IfName)
	if !ok {
		return Ref{}, false
	}
	return r, true
}

// Owner is whose a link on the node is.
type Owner int

// The owners, as a port sees them.
const (
	Mine     Owner = iota // made for this port and attachment
	HalfMade              // Berth's, and the program ended before it said for whom
	Others                // another attachment's, another port's, or not Berth's
)

// OwnerOf tells whose a link is, with an error that says so if it is another's.
func (r Ref) OwnerOf(l *netlink.LinkAttrs) (Owner, error) {
	if l.Group != LinkGroup {
		return Others, fmt.Errorf("%w: %s is not Berth's", ErrNameTaken, l.Name)
	}
	if l.Alias == "" {
		return HalfMade, nil
	}
	other, ok := ParseMark(l.Alias)
	switch {
	case !ok:
		return Others, fmt.Errorf("%w: %s has the unknown mark %q", ErrNameTaken, l.Name, l.Alias)
	case other.PortID != r.PortID:
		return Others, fmt.Errorf("%w: %s is that of port %s, whose ID has the same first %d characters", ErrNameTaken, l.Name, other.PortID, PrefixLen)
	case other.Attachment != r.Attachment:
		return Others, fmt.Errorf("%w: %s has it, by %s", ErrPortInUse, other.Attachment, l.Name)
	}
	return Mine, nil
}
