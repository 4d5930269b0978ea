package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
)

// ovsMark is the external ID of Berth's rows (internal/kernel/plug/ovsdb). The client there
// is not used because it replicates the database into memory.
const ovsMark = "berth-attachment"

// ovsTables are the tables and columns that are read. Columns that may have secrets, such as
// the options of a tunnel, are not.
var ovsTables = []struct {
	table, file string
	columns     []string
	ours        bool // only rows with Berth's external ID
}{
	{"Interface", "interfaces", []string{"name", "type", "external_ids", "ofport", "error", "admin_state", "link_state", "mac_in_use", "mtu"}, true},
	{"Port", "ports", []string{"name", "tag", "interfaces", "external_ids"}, true},
	{"Bridge", "bridges", []string{"name", "datapath_type", "fail_mode"}, false},
	{"Open_vSwitch", "switch", []string{"ovs_version", "db_version"}, false},
}

// ovsdb adds the rows of Open vSwitch's database for NICs of pods, if the node may have any.
func (n *node) ovsdb(ctx context.Context, s *archive.Sink) error {
	if !n.ports || n.ovsdbAt == "" {
		return nil
	}
	rows, err := askOVSDB(ctx, n.endpoint(), s.Most())
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return s.Document("ovsdb.json", data)
}

// endpoint returns the database's address as seen by this program.
func (n *node) endpoint() string {
	if path, ok := strings.CutPrefix(n.ovsdbAt, "unix:"); ok {
		return "unix:" + n.at(path)
	}
	return n.ovsdbAt
}

// askOVSDB reads ovsTables in one transaction (RFC 7047 section 4.1.3) and returns rows by
// file name. The response may be ten times as large as most, as it has other rows too.
func askOVSDB(ctx context.Context, endpoint string, most int64) (map[string][]map[string]any, error) {
	network, address, _ := strings.Cut(endpoint, ":")
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("reach Open vSwitch's database at %s: %w", endpoint, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // unblocks reads and writes
	params := []any{"Open_vSwitch"}
	for _, t := range ovsTables {
		params = append(params, map[string]any{"op": "select", "table": t.table, "where": []any{}, "columns": t.columns})
	}
	if err := json.NewEncoder(conn).Encode(map[string]any{"id": 1, "method": "transact", "params": params}); err != nil {
		return nil, fmt.Errorf("ask Open vSwitch's database: %w", err)
	}
	var reply struct {
		Error  any `json:"error"`
		Result []struct {
			Rows    []map[string]any `json:"rows"`
			Error   string           `json:"error"`
			Details string           `json:"details"`
		} `json:"result"`
	}
	if err := json.NewDecoder(io.LimitReader(conn, 10*most)).Decode(&reply); err != nil {
		return nil, fmt.Errorf("read the answer of Open vSwitch's database: %w", errors.Join(err, ctx.Err()))
	}
	if reply.Error != nil || len(reply.Result) < len(ovsTables) {
		return nil, fmt.Errorf("Open vSwitch's database replies %v, with %d of %d results", reply.Error, len(reply.Result), len(ovsTables))
	}
	out := map[string][]map[string]any{}
	for i, t := range ovsTables {
		r := reply.Result[i]
		if r.Error != "" {
			return nil, fmt.Errorf("table %s of Open vSwitch's database: %s: %s", t.table, r.Error, r.Details)
		}
		out[t.file] = []map[string]any{}
		for _, row := range r.Rows {
			if !t.ours || marked(row["external_ids"]) {
				out[t.file] = append(out[t.file], row)
			}
		}
	}
	return out, nil
}

// marked reports whether external IDs, ["map", [[key, value], ...]], include Berth's.
func marked(ids any) bool {
	pair, _ := ids.([]any)
	if len(pair) != 2 {
		return false
	}
	entries, _ := pair[1].([]any)
	for _, e := range entries {
		if kv, ok := e.([]any); ok && len(kv) == 2 && kv[0] == ovsMark {
			return true
		}
	}
	return false
}
