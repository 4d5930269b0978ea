package ovsdb

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
)

// Interface is a row of table Interface.
type Interface struct {
	UUID string
	Name string            // name of the link
	IDs  map[string]string // external IDs
}

// Bridge is a row of table Bridge.
type Bridge struct {
	UUID     string
	Datapath string // datapath_type: "system" or empty for the kernel, "netdev" for user space
	Ports    []string
}

// portRow is a row of table Port.
type portRow struct{ uuid, name string }

// state is the observed state of a link and a port.
type state struct {
	interfaces []Interface // rows with the name of the link or the iface-id of the port
	ports      []portRow   // rows with the name of the link
	bridge     *Bridge     // the integration bridge; nil: missing
}

// look queries all rows that matter for a link.
func (c *Client) look(ctx context.Context, link, portID, bridge string) (state, error) {
	results, err := c.transact(ctx,
		selectIn("Interface", named(link), "_uuid", "name", "external_ids"),
		selectIn("Interface", lib.NewCondition("external_ids", lib.ConditionIncludes, oneID(IfaceID, portID)), "_uuid", "name", "external_ids"),
		selectIn("Port", named(link), "_uuid", "name"),
		selectIn("Bridge", named(bridge), "_uuid", "datapath_type", "ports"),
	)
	if err != nil {
		return state{}, fmt.Errorf("look up %s: %w", link, err)
	}
	if len(results) != 4 {
		return state{}, fmt.Errorf("look up %s: OVSDB answered %d of 4 queries", link, len(results))
	}
	var s state
	seen := map[string]bool{}
	for _, row := range slices.Concat(results[0].Rows, results[1].Rows) {
		if i := readInterface(row); !seen[i.UUID] {
			seen[i.UUID] = true
			s.interfaces = append(s.interfaces, i)
		}
	}
	for _, row := range results[2].Rows {
		s.ports = append(s.ports, portRow{uuidOf(row["_uuid"]), text(row["name"])})
	}
	for _, row := range results[3].Rows {
		b := readBridge(row)
		s.bridge = &b
	}
	return s, nil
}

// Bridge returns a bridge. Errors: plug.ErrNoBridge, plug.ErrUnreachable.
func (c *Client) Bridge(ctx context.Context, name string) (*Bridge, error) {
	results, err := c.transact(ctx, selectIn("Bridge", named(name), "_uuid", "datapath_type", "ports"))
	if err != nil {
		return nil, fmt.Errorf("look up bridge %s: %w", name, err)
	}
	if len(results) != 1 || len(results[0].Rows) == 0 {
		return nil, fmt.Errorf("%w: %s", plug.ErrNoBridge, name)
	}
	b := readBridge(results[0].Rows[0])
	return &b, nil
}

// Interfaces lists the rows with an attachment ID, which are Berth's, sorted by name.
func (c *Client) Interfaces(ctx context.Context) ([]Interface, error) {
	results, err := c.transact(ctx, lib.Operation{Op: lib.OperationSelect, Table: "Interface", Where: []lib.Condition{}, Columns: []string{"_uuid", "name", "external_ids"}})
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var list []Interface
	for _, r := range results {
		for _, row := range r.Rows {
			if i := readInterface(row); i.IDs[AttachmentID] != "" {
				list = append(list, i)
			}
		}
	}
	slices.SortFunc(list, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

func selectIn(table string, where lib.Condition, columns ...string) lib.Operation {
	return lib.Operation{Op: lib.OperationSelect, Table: table, Where: []lib.Condition{where}, Columns: columns}
}

func named(name string) lib.Condition {
	return lib.NewCondition("name", lib.ConditionEqual, name)
}

func byUUID(uuid string) []lib.Condition {
	return []lib.Condition{lib.NewCondition("_uuid", lib.ConditionEqual, lib.UUID{GoUUID: uuid})}
}

func oneID(key, value string) lib.OvsMap {
	return lib.OvsMap{GoMap: map[any]any{key: value}}
}

func idsOf(ids map[string]string) lib.OvsMap {
	m := lib.OvsMap{GoMap: map[any]any{}}
	for k, v := range ids {
		m.GoMap[k] = v
	}
	return m
}

// The values of a reply, as the library represents OVSDB's notation (RFC 7047, section 5.1). A
// value of an unexpected type reads as empty.

func readInterface(row lib.Row) Interface {
	i := Interface{UUID: uuidOf(row["_uuid"]), Name: text(row["name"]), IDs: map[string]string{}}
	if m, ok := row["external_ids"].(lib.OvsMap); ok {
		for k, v := range m.GoMap {
			i.IDs[text(k)] = text(v)
		}
	}
	return i
}

func readBridge(row lib.Row) Bridge {
	return Bridge{UUID: uuidOf(row["_uuid"]), Datapath: text(row["datapath_type"]), Ports: uuidsOf(row["ports"])}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func uuidOf(v any) string {
	u, _ := v.(lib.UUID)
	return u.GoUUID
}

// uuidsOf reads a set. OVSDB writes a set with one element as that element.
func uuidsOf(v any) []string {
	set, ok := v.(lib.OvsSet)
	if !ok {
		set.GoSet = []any{v}
	}
	var list []string
	for _, e := range set.GoSet {
		if u := uuidOf(e); u != "" {
			list = append(list, u)
		}
	}
	return list
}

func sameIDs(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}
