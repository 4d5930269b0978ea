package lab

import (
	"errors"
	"regexp"

	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/node"
)

// machine is a running instance, or a running node of a site.
type machine struct {
	*node.Node
	autostart bool          // berthd is started when the machine has booted
	joined    chan struct{} // closed once the API knows the node, and it the API; nil in node mode
	host      *host.Host    // what runs on it where it is a whole machine, else nil
	dark      bool          // powered off; guarded by follower.following

	ports portcloud.Cloud // that it is a host of, in port mode, else nil
	ovsdb string          // then where its OVSDB is, for this process
}

// PowerOff cuts the machine's power.
func (m *machine) PowerOff() error {
	var err error
	if m.host != nil {
		err = m.host.Kill()
	}
	if m.ports != nil {
		err = errors.Join(err, m.ports.Leave(m.Name))
	}
	return errors.Join(err, m.Node.PowerOff())
}

// Scrap removes its disk.
func (m *machine) Scrap() error {
	var err error
	if m.host != nil {
		err = m.host.Scrap()
	}
	return errors.Join(err, m.Node.Scrap())
}

var validNode = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$`)

// IPv6Only reports whether an instance is in an IPv6-only subnet.
func IPv6Only(books vpc.Books, instanceID string) bool {
	i, _ := books.Instance(instanceID)
	s, ok := books.Subnet(i.SubnetID)
	return ok && s.IPv6Native()
}
