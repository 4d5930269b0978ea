package vpc

import (
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// AttachRequest plugs an ENI into an instance.
type AttachRequest struct {
	ENIID       string
	InstanceID  string
	DeviceIndex int
	NetworkCard int
}

// AttachNetworkInterface begins to attach an ENI and returns the attachment's
// ID. The attachment becomes "attached" after the attach delay; the link
// appears (event ENIAttached) after the link delay.
func (c *Cloud) AttachNetworkInterface(r AttachRequest) (attachmentID string, err error) {
	err = c.change(func() error {
		e, err := c.findENI(r.ENIID)
		if err != nil {
			return err
		}
		i, err := c.findInstance(r.InstanceID)
		if err != nil {
			return err
		}
		if i.State != Running && i.State != Stopped {
			return Errorf("IncorrectInstanceState", "The instance '%s' is not in the 'running' or 'stopped' state: it is '%s'.", i.ID, i.State)
		}
		if err := c.mayAttach(e, i, r.DeviceIndex, r.NetworkCard); err != nil {
			return err
		}
		attachmentID = c.recordAttachment(i, e, r.DeviceIndex, r.NetworkCard, Attaching, false)
		c.after(c.delays.Attach.D(), func() { c.attached(r.ENIID, attachmentID) })
		c.after(c.delays.Link.D(), func() { c.linkUp(r.ENIID, attachmentID) })
		return nil
	})
	return attachmentID, err
}

// mayAttach checks what EC2 checks before an attachment. The lock is held.
func (c *Cloud) mayAttach(e *ENI, i *Instance, device, card int) error {
	if e.Status() != available {
		return Errorf("InvalidNetworkInterface.InUse", "Interface: [%s] in use.", e.ID)
	}
	if e.Type == trunk && limits.Branches(i.Type) == 0 {
		return Errorf("UnsupportedOperation", "The instance type %s does not support trunk interfaces.", i.Type)
	}
	if e.VPCID != i.VPCID {
		return badCombination("You may not attach a network interface to an instance if they are not in the same VPC")
	}
	if e.Zone != i.Zone {
		return badCombination("You may not attach a network interface to an instance if they are not in the same availability zone")
	}
	return c.slotFree(e, i, device, card)
}

// slotFree checks the limits of the instance type. The lock is held.
func (c *Cloud) slotFree(e *ENI, i *Instance, device, card int) error {
	l, _ := limits.Find(i.Type)
	if card < 0 || card >= l.NetworkCards {
		return invalid("Network card index '%d' exceeds the limit for %s", card, i.Type)
	}
	used := 0
	for _, other := range c.instanceENIs(i.ID) {
		a := other.Attachment
		if a.NetworkCard != card {
			continue
		}
		used++
		if a.DeviceIndex == device {
			return invalid("Instance '%s' already has an interface attached at device index '%d'.", i.ID, device)
		}
	}
	if used >= l.MaxENIs {
		return Errorf("AttachmentLimitExceeded", "Interface count %d exceeds the limit for %s", used+1, i.Type)
	}
	if device < 0 || device > 255 {
		return invalid("Value (%d) for parameter deviceIndex is invalid.", device)
	}
	return c.room(i, e)
}

// room checks that an instance's type can carry what an ENI already has. In a subnet of IPv6
// alone are instances built on Nitro only (Amazon VPC User Guide, "Subnet types").
func (c *Cloud) room(i *Instance, e *ENI) error {
	l, _ := limits.Lookup(i.Type)
	if !l.Prefixes && c.subnets.get(e.SubnetID).IPv6Native() { // only these have prefixes, too
		return Errorf("UnsupportedOperation", "The instance type %s does not support IPv6-only subnets: they are for Nitro-based instances.", i.Type)
	}
	if !l.Prefixes && len(e.Prefixes)+len(e.IPv6Prefixes) > 0 {
		return prefixesUnsupported(i.Type)
	}
	if e.slots4() > l.IPv4PerENI || e.slots6() > l.IPv6PerENI {
		return tooManyAddresses()
	}
	return nil
}

// recordAttachment records an attachment and returns its ID. The lock is held.
func (c *Cloud) recordAttachment(i *Instance, e *ENI, device, card int, s AttachmentStatus, deleteOnTermination bool) string {
	n := e.Clone()
	n.Attachment = &Attachment{
		ID: c.newID("eni-attach"), InstanceID: i.ID, DeviceIndex: device, NetworkCard: card,
		Status: s, DeleteOnTermination: deleteOnTermination, Time: c.clock.Now(),
	}
	for _, index := range []map[string]map[string]struct{}{c.attachedENIs, c.everAttached} {
		if index[i.ID] == nil {
			index[i.ID] = map[string]struct{}{}
		}
		index[i.ID][e.ID] = struct{}{}
	}
	if !slices.Contains(c.everHosts[e.ID], i.ID) {
		c.everHosts[e.ID] = append(c.everHosts[e.ID], i.ID)
	}
	c.attachments[n.Attachment.ID] = e.ID
	c.putENI(&n)
	return n.Attachment.ID
}

// attachment returns an ENI if it still has the given attachment and is not
// being detached. The lock is held.
func (c *Cloud) attachment(eniID, attachmentID string) (*ENI, bool) {
	e := c.enis.get(eniID)
	ok := e != nil && e.Attachment != nil && e.Attachment.ID == attachmentID && e.Attachment.Status != Detaching
	return e, ok
}

// attached ends the attaching state. The lock is held.
func (c *Cloud) attached(eniID, attachmentID string) {
	if e, ok := c.attachment(eniID, attachmentID); ok {
		n := e.Clone()
		n.Attachment.Status = Attached
		c.putENI(&n)
	}
}

// linkUp makes the link appear in a running instance. The lock is held.
func (c *Cloud) linkUp(eniID, attachmentID string) {
	e, ok := c.attachment(eniID, attachmentID)
	if !ok || e.Attachment.LinkUp {
		return
	}
	i := c.instances.get(e.Attachment.InstanceID)
	if i.State != Running {
		return
	}
	n := e.Clone()
	n.Attachment.LinkUp = true
	c.putENI(&n)
	c.emit(ENIAttached, i, &n)
	for _, b := range c.trunkBranches(eniID) {
		c.emit(ENIAssociated, i, b)
	}
}

// DetachNetworkInterface begins to detach an ENI; it is available again after
// the detach delay. A trunk that has branches stays: nothing says what becomes of them.
func (c *Cloud) DetachNetworkInterface(attachmentID string, force bool) error {
	return c.change(func() error {
		e := c.enis.get(c.attachments[attachmentID])
		if e == nil {
			return NotFound("eni-attach", attachmentID)
		}
		a := e.Attachment
		switch {
		case a.Primary():
			return Errorf("OperationNotPermitted", "The network interface at device index 0 and networkCard index %d cannot be detached.", a.NetworkCard)
		case a.Status == Detaching:
			return nil
		case a.Status == Attaching && !force:
			return Errorf("IncorrectState", "The attachment '%s' is in state 'attaching' and cannot be detached.", attachmentID)
		case len(c.branches[e.ID]) > 0:
			return Errorf("DependencyViolation", "The trunk interface '%s' has %d associated branch interfaces.", e.ID, len(c.branches[e.ID]))
		}
		n := e.Clone()
		n.Attachment.Status = Detaching
		c.putENI(&n)
		c.after(c.delays.Detach.D(), func() {
			if e := c.enis.get(c.attachments[attachmentID]); e != nil {
				c.endAttachment(e)
			}
		})
		return nil
	})
}

// endAttachment ends an attachment at once, and by that the associations of a trunk
// (pull request 400 of the Amazon VPC resource controller). The lock is held.
func (c *Cloud) endAttachment(e *ENI) {
	for _, b := range c.trunkBranches(e.ID) {
		c.endAssociation(b)
	}
	i := c.instances.get(e.Attachment.InstanceID)
	delete(c.attachedENIs[e.Attachment.InstanceID], e.ID)
	if len(c.attachedENIs[e.Attachment.InstanceID]) == 0 {
		delete(c.attachedENIs, e.Attachment.InstanceID)
	}
	delete(c.attachments, e.Attachment.ID)
	last := e.Clone()
	last.Attachment.Status = Detached
	n := e.Clone()
	n.Attachment = nil
	c.putENI(&n)
	c.emit(ENIDetached, i, &last)
}
