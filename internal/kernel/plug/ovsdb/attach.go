package ovsdb

import (
	"context"
	"fmt"
	"maps"
	"slices"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
)

// Port is a link that is to be a port of a bridge.
type Port struct {
	Link string
	plug.Ref
	MAC    string // of what sends by it
	VMUUID string // empty: none
}

// ids are the external IDs that a port's Interface has, besides those of others.
func (p Port) ids() map[string]string {
	ids := map[string]string{IfaceID: p.PortID, AttachedMAC: p.MAC, IfaceStatus: "active", AttachmentID: p.Attachment}
	if p.VMUUID != "" {
		ids[VMUUID] = p.VMUUID
	}
	return ids
}

// attempts is how often a change is decided on anew after another's came between the look and
// the change.
const attempts = 3

// Attach makes a link a port of its bridge, or has it so already. All of it is one
// transaction. Errors: plug.ErrNoBridge, plug.ErrNameTaken, plug.ErrPortInUse, plug.ErrUnreachable.
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

// Ready tells whether Attach may make a link a port of its bridge, and describes the bridge.
// Errors are those of Attach.
func (c *Client) Ready(ctx context.Context, p Port) (*Bridge, error) {
	s, err := c.look(ctx, p.Link, p.PortID, p.Bridge)
	if err != nil {
		return nil, err
	}
	_, err = attach(s, p)
	return s.bridge, err
}

// attach decides what makes a link a port of its bridge: nothing when it is.
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
	// Rows of this port that are of another bridge, or of none, are made anew.
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

// setIDs changes external IDs and leaves others alone, which others write at any time.
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

// mayHave tells whether an Interface is this port's own, with an error that says whose it is
// if not.
func (p Port) mayHave(i Interface) error {
	id, attachment := i.IDs[IfaceID], i.IDs[AttachmentID]
	switch {
	case i.Name != p.Link: // so it has the port's iface-id, which OVN wants once on a node
		return fmt.Errorf("%w: interface %s of Open vSwitch has %s %s", plug.ErrPortInUse, i.Name, IfaceID, id)
	case attachment == "":
		return fmt.Errorf("%w: interface %s of Open vSwitch is not Berth's", plug.ErrNameTaken, i.Name)
	case id != p.PortID:
		return fmt.Errorf("%w: interface %s of Open vSwitch is that of port %s, whose ID has the same first %d characters",
			plug.ErrNameTaken, i.Name, id, plug.PrefixLen)
	case attachment != p.Attachment:
		return fmt.Errorf("%w: %s has it, by interface %s of Open vSwitch", plug.ErrPortInUse, attachment, i.Name)
	}
	return nil
}

// Detach ends that a link is a port of a bridge, in one transaction. Rows that are not this
// attachment's and port's stay. Errors: plug.ErrUnreachable.
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

// remove decides what removes the rows of this port, whichever bridge has them.
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

// Check notes how the rows of a link differ from what they should be.
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
		found.Add("%s is no port of bridge %s", p.Link, p.Bridge)
	}
}
