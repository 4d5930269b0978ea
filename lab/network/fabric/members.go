package fabric

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// join updates the sets that contain an ENI: the links of its groups, and the public addresses.
func (r *ruleset) join(c *nftables.Conn, p *plugged) error {
	for _, id := range p.eni.Groups {
		if _, err := r.group(c, id); err != nil {
			return err
		}
	}
	for id, links := range r.members {
		if err := r.setMember(c, id, links, p.link, slices.Contains(p.eni.Groups, id)); err != nil {
			return err
		}
	}
	public := ""
	if p.eni.Attachment != nil && p.eni.Attachment.Primary() {
		public = string(p.eni.Primary.AsSlice())
	}
	return r.setPublic(c, p.link, public)
}

// leave removes an ENI from all sets.
func (r *ruleset) leave(c *nftables.Conn, p *plugged) error {
	for id, links := range r.members {
		if err := r.setMember(c, id, links, p.link, false); err != nil {
			return err
		}
	}
	return r.setPublic(c, p.link, "")
}

func (r *ruleset) setMember(c *nftables.Conn, group string, links map[string]bool, link string, want bool) error {
	el := []nftables.SetElement{{Key: ifname(link)}}
	switch {
	case want && !links[link]:
		links[link] = true
		return c.SetAddElements(r.groups[group], el)
	case !want && links[link]:
		delete(links, link)
		return c.SetDeleteElements(r.groups[group], el)
	}
	return nil
}

func (r *ruleset) setPublic(c *nftables.Conn, link, addr string) error {
	old := r.publicOf[link]
	if old == addr {
		return nil
	}
	delete(r.publicOf, link)
	if old != "" {
		if err := c.SetDeleteElements(r.public, []nftables.SetElement{{Key: []byte(old)}}); err != nil {
			return err
		}
	}
	if addr == "" {
		return nil
	}
	r.publicOf[link] = addr
	return c.SetAddElements(r.public, []nftables.SetElement{{Key: []byte(addr)}})
}

// group returns the set of a group's links, which it creates on first use.
func (r *ruleset) group(c *nftables.Conn, id string) (*nftables.Set, error) {
	if s := r.groups[id]; s != nil {
		return s, nil
	}
	s := r.newSet(id, nftables.TypeIFName)
	if err := c.AddSet(s, nil); err != nil {
		return nil, fmt.Errorf("add set %s: %w", id, err)
	}
	r.groups[id], r.members[id] = s, map[string]bool{}
	return s, nil
}
