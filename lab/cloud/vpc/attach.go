package vpc

import (
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// attachments records which ENIs are attached to which instances. The world's lock guards it.
type attachments struct {
	world  *world
	store  *store
	trunks *trunks

	current map[string]map[string]struct{} // instance ID to the IDs of its ENIs
	ever    map[string]map[string]struct{} // like current, including ENIs attached in the past
	hosts   map[string][]string            // the inverse of ever: ENI ID to instance IDs
	byID    map[string]string              // attachment ID to ENI ID
}

func newAttachments(s *store, t *trunks) *attachments {
	return &attachments{
		world: s.world, store: s, trunks: t,
		current: map[string]map[string]struct{}{}, ever: map[string]map[string]struct{}{}, hosts: map[string][]string{}, byID: map[string]string{},
	}
}

// AttachRequest attaches an ENI to an instance.
type AttachRequest struct {
	ENIID       string
	InstanceID  string
	DeviceIndex int
	NetworkCard int
}

// Attach starts to attach an ENI and returns the attachment's ID. The attachment becomes "attached" after
// the attach delay; the link appears (event ENIAttached) after the link delay.
func (es *ENIs) Attach(r AttachRequest) (attachmentID string, err error) {
	err = es.world.change(func() error {
		e, err := es.store.findENI(r.ENIID)
		if err != nil {
			return err
		}
		i, err := es.store.findInstance(r.InstanceID)
		if err != nil {
			return err
		}
		if i.State != Running && i.State != Stopped {
			return Errorf("IncorrectInstanceState", "The instance '%s' is not in the 'running' or 'stopped' state: it is '%s'.", i.ID, i.State)
		}
		if err := es.attachments.mayAttach(e, i, r.DeviceIndex, r.NetworkCard); err != nil {
			return err
		}
		attachmentID = es.attachments.recordAttachment(i, e, r.DeviceIndex, r.NetworkCard, Attaching, false)
		es.world.after(es.world.delays.Attach.D(), func() { es.attachments.attached(r.ENIID, attachmentID) })
		es.world.after(es.world.delays.Link.D(), func() { es.attachments.linkUp(r.ENIID, attachmentID) })
		return nil
	})
	return attachmentID, err
}

// mayAttach performs EC2's checks before an attachment. The caller must hold the lock.
func (as *attachments) mayAttach(e *ENI, i *Instance, device, card int) error {
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
	return as.slotFree(e, i, device, card)
}

// slotFree checks the limits of the instance type. The caller must hold the lock.
func (as *attachments) slotFree(e *ENI, i *Instance, device, card int) error {
	l, _ := limits.Find(i.Type)
	if card < 0 || card >= l.NetworkCards {
		return invalid("Network card index '%d' exceeds the limit for %s", card, i.Type)
	}
	used := 0
	for _, other := range as.instanceENIs(i.ID) {
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
	return as.store.room(i, e)
}

// recordAttachment records an attachment and returns its ID. The caller must hold the lock.
func (as *attachments) recordAttachment(i *Instance, e *ENI, device, card int, s AttachmentStatus, deleteOnTermination bool) string {
	n := e.Clone()
	n.Attachment = &Attachment{
		ID: as.world.newID("eni-attach"), InstanceID: i.ID, DeviceIndex: device, NetworkCard: card,
		Status: s, DeleteOnTermination: deleteOnTermination, Time: as.world.clock.Now(),
	}
	for _, index := range []map[string]map[string]struct{}{as.current, as.ever} {
		if index[i.ID] == nil {
			index[i.ID] = map[string]struct{}{}
		}
		index[i.ID][e.ID] = struct{}{}
	}
	if !slices.Contains(as.hosts[e.ID], i.ID) {
		as.hosts[e.ID] = append(as.hosts[e.ID], i.ID)
	}
	as.byID[n.Attachment.ID] = e.ID
	as.store.putENI(&n)
	return n.Attachment.ID
}

// attachment returns an ENI if it still has the given attachment and is not being detached. The caller
// must hold the lock.
func (as *attachments) attachment(eniID, attachmentID string) (*ENI, bool) {
	e := as.store.enis.get(eniID)
	ok := e != nil && e.Attachment != nil && e.Attachment.ID == attachmentID && e.Attachment.Status != Detaching
	return e, ok
}

// attached ends the attaching state. The caller must hold the lock.
func (as *attachments) attached(eniID, attachmentID string) {
	if e, ok := as.attachment(eniID, attachmentID); ok {
		n := e.Clone()
		n.Attachment.Status = Attached
		as.store.putENI(&n)
	}
}

// linkUp makes the link appear in a running instance. The caller must hold the lock.
func (as *attachments) linkUp(eniID, attachmentID string) {
	e, ok := as.attachment(eniID, attachmentID)
	if !ok || e.Attachment.LinkUp {
		return
	}
	i := as.store.instances.get(e.Attachment.InstanceID)
	if i.State != Running {
		return
	}
	n := e.Clone()
	n.Attachment.LinkUp = true
	as.store.putENI(&n)
	as.world.emit(ENIAttached, i, &n)
	for _, b := range as.trunks.trunkBranches(eniID) {
		as.world.emit(ENIAssociated, i, b)
	}
}

// instanceENIs lists an instance's ENIs by network card and device index. The caller must hold the lock.
func (as *attachments) instanceENIs(instanceID string) []*ENI {
	var out []*ENI
	for id := range as.current[instanceID] {
		out = append(out, as.store.enis.get(id))
	}
	slices.SortFunc(out, func(a, b *ENI) int { return bySlot(a.Attachment, b.Attachment) })
	return out
}

// forget removes a deleted ENI for good. The caller must hold the lock.
func (as *attachments) forget(id string) {
	as.store.enis.drop(id)
	for _, host := range as.hosts[id] {
		delete(as.ever[host], id)
		if len(as.ever[host]) == 0 {
			delete(as.ever, host)
		}
	}
	delete(as.hosts, id)
}

// Detach starts to detach an ENI, which becomes available after the detach delay. It refuses a trunk with
// branches, because EC2 documents no behaviour for it.
func (es *ENIs) Detach(attachmentID string, force bool) error {
	return es.world.change(func() error {
		e := es.store.enis.get(es.attachments.byID[attachmentID])
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
		case len(es.trunks.branches[e.ID]) > 0:
			return Errorf("DependencyViolation", "The trunk interface '%s' has %d associated branch interfaces.", e.ID, len(es.trunks.branches[e.ID]))
		}
		n := e.Clone()
		n.Attachment.Status = Detaching
		es.store.putENI(&n)
		es.world.after(es.world.delays.Detach.D(), func() {
			if e := es.store.enis.get(es.attachments.byID[attachmentID]); e != nil {
				es.attachments.endAttachment(e)
			}
		})
		return nil
	})
}

// endAttachment ends an attachment immediately, and with it the associations of a trunk (pull request 400
// of the Amazon VPC resource controller). The caller must hold the lock.
func (as *attachments) endAttachment(e *ENI) {
	for _, b := range as.trunks.trunkBranches(e.ID) {
		as.trunks.endAssociation(b)
	}
	i := as.store.instances.get(e.Attachment.InstanceID)
	delete(as.current[e.Attachment.InstanceID], e.ID)
	if len(as.current[e.Attachment.InstanceID]) == 0 {
		delete(as.current, e.Attachment.InstanceID)
	}
	delete(as.byID, e.Attachment.ID)
	last := e.Clone()
	last.Attachment.Status = Detached
	n := e.Clone()
	n.Attachment = nil
	as.store.putENI(&n)
	as.world.emit(ENIDetached, i, &last)
}
