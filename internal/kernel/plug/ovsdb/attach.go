package ovsdb

import (
	"context"
	"fmt"
	"maps"
	"slices"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
)

// Port is a link that is, or should be, a port of a bridge.
type Port struct {
	Link string
	plug.Ref
	MAC    string // MAC address of the sender behind the link
	VMUUID string // empty: none
}

// ids are the external IDs of the port's Interface. Other programs may add more.
func (p Port) ids() map[string]string {
	ids := map[string]string{IfaceID: p.PortID, AttachedMAC: p.MAC, IfaceStatus: "active", AttachmentID: p.Attachment}
	if p.VMUUID != "" {
		ids[VMUUID] = p.VMUUID
	}
	return ids
}

// attempts limits the retries of a change that conflicts with a change of another program.
const attempts = 3

// Attach makes a link a port of its bridge in one transaction. It is idempotent. Errors:
// plug.ErrNoBridge, plug.ErrNameTaken, plug.ErrPortInUse, plug.ErrUnreachable.
func (c *Client) Attach(ctx context.Context, p Port) error {
	var err error
	for range attempts {
		var s state
		if s, err = c.look(ctx, p.Link, p.PortID, p.Bridge); err != nil {
			return err
		}
		var ops []lib.Operation
		if ops, err = attach(s, p); err != nil || len(ops) == 0 {
			return err
		}
		if _, err = c.transact(ctx, ops...); err == nil {
			return nil
		}
		err = fmt.Errorf("make %s a port of %s: %w", p.Link, p.Bridge, err)
		if ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Ready reports whether Attach can make a link a port of its bridge, and returns the bridge.
// Errors: those of Attach.
func (c *Client) Ready(ctx context.Context, p Port) (*Bridge, error) {
	s, err := c.look(ctx, p.Link, p.PortID, p.Bridge)
	if err != nil {
		return nil, err
	}
	_, err = attach(s, p)
	return s.bridge, err
}

// attach returns the operations that make a link a port of its bridge; none if it already is one.
func attach(s state, p Port) ([]lib.Operation, error) {
	if s.bridge == nil {
		return nil, fmt.Errorf("%w: %s", plug.ErrNoBridge, p.Bridge)
	}
	var mine *Interface
	for _, i := range s.interfaces {
		if err := p.mayHave(i); err != nil {
			return nil, err
		}
		mine = &i
	}
	if mine != nil && len(s.ports) == 1 && slices.Contains(s.bridge.Ports, s.ports[0].uuid) {
		if sameIDs(mine.IDs, p.ids()) {
			return nil, nil
		}
		return []lib.Operation{setIDs(mine.UUID, p.ids())}, nil
	}
	// Rows of this port in another bridge, or in none, are created again.
	ops := remove(s, p)
	const iface, port = "newiface", "newport"
	return append(ops,
		lib.Operation{Op: lib.OperationInsert, Table: "Interface", UUIDName: iface, Row: lib.Row{"name": p.Link, "external_ids": idsOf(p.ids())}},
		lib.Operation{Op: lib.OperationInsert, Table: "Port", UUIDName: port, Row: lib.Row{
			"name": p.Link, "interfaces": lib.UUID{GoUUID: iface}, "external_ids": idsOf(map[string]string{AttachmentID: p.Attachment}),
		}},
		lib.Operation{
			Op: lib.OperationMutate, Table: "Bridge", Where: byUUID(s.bridge.UUID),
			Mutations: []lib.Mutation{*lib.NewMutation("ports", lib.MutateOperationInsert, lib.UUID{GoUUID: port})},
		},
	), nil
}

// setIDs changes only these external IDs, because other programs may write others at any time.
func setIDs(uuid string, ids map[string]string) lib.Operation {
	keys := lib.OvsSet{}
	for _, k := range slices.Sorted(maps.Keys(ids)) {
		keys.GoSet = append(keys.GoSet, k)
	}
	return lib.Operation{Op: lib.OperationMutate, Table: "Interface", Where: byUUID(uuid), Mutations: []lib.Mutation{
		*lib.NewMutation("external_ids", lib.MutateOperationDelete, keys),
		*lib.NewMutation("external_ids", lib.MutateOperationInsert, idsOf(ids)),
	}}
}

// mayHave returns nil if an Interface belongs to this port, or an error with its owner.
func (p Port) mayHave(i Interface) error {
	id, attachment := i.IDs[IfaceID], i.IDs[AttachmentID]
	switch {
	case i.Name != p.Link: // it has the port's iface-id, which must be unique on a node for OVN
		return fmt.Errorf("%w: interface %s of Open vSwitch has %s %s", plug.ErrPortInUse, i.Name, IfaceID, id)
	case attachment == "":
		return fmt.Errorf("%w: interface %s of Open vSwitch was not created by Berth", plug.ErrNameTaken, i.Name)
	case id != p.PortID:
		return fmt.Errorf("%w: interface %s of Open vSwitch belongs to port %s, whose ID has the same first %d characters",
			plug.ErrNameTaken, i.Name, id, plug.PrefixLen)
	case attachment != p.Attachment:
		return fmt.Errorf("%w: %s uses it with interface %s of Open vSwitch", plug.ErrPortInUse, attachment, i.Name)
	}
	return nil
}

// Detach removes a link from its bridge in one transaction. Rows of other attachments and ports
// stay. Errors: plug.ErrUnreachable.
func (c *Client) Detach(ctx context.Context, p Port) error {
	s, err := c.look(ctx, p.Link, p.PortID, p.Bridge)
	if err != nil {
		return err
	}
	ops := remove(s, p)
	if len(ops) == 0 {
		return nil
	}
	if _, err := c.transact(ctx, ops...); err != nil {
		return fmt.Errorf("remove %s from Open vSwitch: %w", p.Link, err)
	}
	return nil
}

// remove returns the operations that remove the rows of this port from all bridges.
func remove(s state, p Port) []lib.Operation {
	var ops []lib.Operation
	for _, i := range s.interfaces {
		if p.mayHave(i) != nil {
			continue
		}
		for _, port := range s.ports {
			gone := lib.UUID{GoUUID: port.uuid}
			ops = append(ops, lib.Operation{
				Op: lib.OperationMutate, Table: "Bridge",
				Where:     []lib.Condition{lib.NewCondition("ports", lib.ConditionIncludes, gone)},
				Mutations: []lib.Mutation{*lib.NewMutation("ports", lib.MutateOperationDelete, gone)},
			}, lib.Operation{Op: lib.OperationDelete, Table: "Port", Where: byUUID(port.uuid)})
		}
		ops = append(ops, lib.Operation{Op: lib.OperationDelete, Table: "Interface", Where: byUUID(i.UUID)})
	}
	return ops
}

// Check adds differences of the rows of a link.
func (c *Client) Check(ctx context.Context, p Port, found *plug.Differences) error {
	s, err := c.look(ctx, p.Link, p.PortID, p.Bridge)
	if err != nil {
		return err
	}
	differences(s, p, found)
	return nil
}

func differences(s state, p Port, found *plug.Differences) {
	if s.bridge == nil {
		found.Add("Open vSwitch has no bridge %s", p.Bridge)
		return
	}
	mine := 0
	for _, i := range s.interfaces {
		if err := p.mayHave(i); err != nil {
			found.Add("%v", err)
			continue
		}
		mine++
		want := p.ids()
		for _, key := range []string{AttachedMAC, IfaceStatus, VMUUID} {
			if w, ok := want[key]; ok && i.IDs[key] != w {
				found.Add("interface %s of Open vSwitch has %s %q, not %q", i.Name, key, i.IDs[key], w)
			}
		}
	}
	if mine == 0 || len(s.ports) != 1 || !slices.Contains(s.bridge.Ports, s.ports[0].uuid) {
		found.Add("%s is not a port of bridge %s", p.Link, p.Bridge)
	}
}
