package plug

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// LinkGroup is the link group of the links of ports.
const LinkGroup = rtnl.PortGroup

// Short is the part of a port ID in its link names: the first 11 characters, which Neutron's and
// Alcor's agents expect. Two ports may share it. For VLANs it is part of a hash, because EC2's IDs,
// such as eni-0a1b2c3d4e5f67890, start alike and no agent looks for these links.
func (r Ref) Short() string {
	if r.Kind == VLAN || r.Kind == RoutedVLAN {
		sum := sha256.Sum256([]byte(r.PortID))
		return hex.EncodeToString(sum[:])[:PrefixLen]
	}
	return r.PortID[:PrefixLen]
}

// VLANPrefix is the prefix of VLAN names on the node. VLANs in pods have it until they are renamed.
const VLANPrefix = "vl"

// VLANLink is the name of a port's VLAN on the node.
func (r Ref) VLANLink() string { return VLANPrefix + r.Short() }

// IsLinkOf reports whether a link on the node has a name that Neutron's agents use for a port: tap,
// qbr, qvb or qvo, and the first characters of the port ID.
func IsLinkOf(link, portID string) bool {
	const prefix = len("tap")
	return len(link) == prefix+PrefixLen && len(portID) >= PrefixLen && link[prefix:] == portID[:PrefixLen]
}

// Mark is the alias of the links of a port. It records their owner.
func (r Ref) Mark() string {
	return strings.Join([]string{"berth", string(r.Kind), r.Attachment, r.PortID, r.Pod.IfName}, " ")
}

// ParseMark parses an alias that Mark returned. Further words may follow.
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

// Owner is the owner of a link on the node.
type Owner int

// The owners, from the viewpoint of one port.
const (
	Mine     Owner = iota // this port and attachment
	HalfMade              // Berth, but creation was interrupted before the alias was written
	Others                // another attachment or port, or other software
)

// OwnerOf returns the owner of a link. For Others, the error names the owner.
func (r Ref) OwnerOf(l *netlink.LinkAttrs) (Owner, error) {
	if l.Group != LinkGroup {
		return Others, fmt.Errorf("%w: %s was not created by Berth", ErrNameTaken, l.Name)
	}
	if l.Alias == "" {
		return HalfMade, nil
	}
	other, ok := ParseMark(l.Alias)
	if !ok {
		return Others, fmt.Errorf("%w: %s has the unknown alias %q", ErrNameTaken, l.Name, l.Alias)
	}
	if err := r.SharesName(other, l.Name); err != nil {
		return Others, err
	}
	return Mine, nil
}

// SharesName returns an error that names the owner of a link, unless the owner is this port and attachment.
func (r Ref) SharesName(owner Ref, link string) error {
	switch {
	case owner.PortID != r.PortID:
		return fmt.Errorf("%w: %s belongs to port %s, whose ID has the same first %d characters", ErrNameTaken, link, owner.PortID, PrefixLen)
	case owner.Attachment != r.Attachment:
		return fmt.Errorf("%w: %s uses it with link %s", ErrPortInUse, owner.Attachment, link)
	}
	return nil
}
