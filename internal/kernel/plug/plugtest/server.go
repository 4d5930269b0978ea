package plugtest

import (
	"context"
	_ "embed" // the schema
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/rpc2"
	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/database/inmemory"
	"github.com/ovn-kubernetes/libovsdb/model"
	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/server"

	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
)

//go:embed schema.json
var schemaJSON []byte // schema of ovs-vswitchd 3.1, reduced to the relevant columns

type (
	rootRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Bridges     []string          `ovsdb:"bridges"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	bridgeRow struct {
		UUID         string            `ovsdb:"_uuid"`
		Name         string            `ovsdb:"name"`
		DatapathType string            `ovsdb:"datapath_type"`
		Ports        []string          `ovsdb:"ports"`
		ExternalIDs  map[string]string `ovsdb:"external_ids"`
	}
	portRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		Interfaces  []string          `ovsdb:"interfaces"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	// InterfaceRow is a row of table Interface.
	InterfaceRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		Type        string            `ovsdb:"type"`
		OFPort      *int              `ovsdb:"ofport"`
		Error       *string           `ovsdb:"error"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
)

func clientModel(t testing.TB) model.ClientDBModel {
	m, err := model.NewClientDBModel("Open_vSwitch", map[string]model.Model{
		"Open_vSwitch": &rootRow{}, "Bridge": &bridgeRow{}, "Port": &portRow{}, "Interface": &InterfaceRow{},
	})
	Must(t, err)
	return m
}

// Server is libovsdb's OVSDB server with one bridge, br-int. Its second client stands in for
// ovs-vswitchd and OVN's controller.
type Server struct {
	Endpoint string
	t        testing.TB
	path     string
	server   *server.OvsdbServer
	other    client.Client

	mu      sync.Mutex
	clients []*rpc2.Client // guarded by mu; the server does not close their connections
}

// NewServer starts a server that ends with the test.
func NewServer(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "db")
	Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{t: t, path: filepath.Join(dir, "db.sock")}
	s.Endpoint = "unix:" + s.path
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts the server with an empty br-int.
func (s *Server) Start() {
	t := s.t
	t.Helper()
	var schema lib.DatabaseSchema
	Must(t, json.Unmarshal(schemaJSON, &schema))
	dbModel, errs := model.NewDatabaseModel(schema, clientModel(t))
	Must(t, errors.Join(errs...))
	quiet := logr.Discard()
	db := inmemory.NewDatabase(map[string]model.ClientDBModel{"Open_vSwitch": dbModel.Client()}, &quiet)
	var err error
	s.server, err = server.NewOvsdbServer(db, &quiet, dbModel)
	Must(t, err)
	_ = os.Remove(s.path)
	s.server.OnConnect(func(c *rpc2.Client) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clients = append(s.clients, c)
	})
	go func(o *server.OvsdbServer) { _ = o.Serve("unix", s.path) }(s.server)
	Within(t, "the OVSDB server listens", s.server.Ready)
	s.other = s.connect()
	s.Transact(
		lib.Operation{Op: "insert", Table: "Bridge", UUIDName: "br", Row: lib.Row{"name": "br-int"}},
		lib.Operation{Op: "insert", Table: "Open_vSwitch", UUIDName: "root", Row: lib.Row{"bridges": lib.UUID{GoUUID: "br"}}},
	)
}

func (s *Server) connect() client.Client {
	s.t.Helper()
	c, err := client.NewOVSDBClient(clientModel(s.t), client.WithEndpoint(s.Endpoint))
	Must(s.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	Must(s.t, c.Connect(ctx))
	return c
}

// Stop stops the server. Its data is lost.
func (s *Server) Stop() {
	if s.server == nil {
		return
	}
	s.other.Close()
	s.server.Close()
	s.server = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		_ = c.Close()
	}
	s.clients = nil
}

// Client returns a client of package ovsdb that is closed with the test.
func (s *Server) Client() *ovsdb.Client {
	s.t.Helper()
	c, err := ovsdb.New(s.Endpoint, slog.New(slog.DiscardHandler))
	Must(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// Transact runs a transaction as another program.
func (s *Server) Transact(ops ...lib.Operation) []lib.OperationResult {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	results, err := s.other.Transact(ctx, ops...)
	Must(s.t, err)
	if _, err := lib.CheckOperationResults(results, ops); err != nil {
		s.t.Fatalf("OVSDB transaction: %v: %v", err, results)
	}
	return results
}

// AddInterface adds a port of another program to br-int.
func (s *Server) AddInterface(name string, ids map[string]string) {
	s.t.Helper()
	s.Transact(
		lib.Operation{Op: "insert", Table: "Interface", UUIDName: "i", Row: lib.Row{"name": name, "external_ids": Map(ids)}},
		lib.Operation{Op: "insert", Table: "Port", UUIDName: "p", Row: lib.Row{"name": name, "interfaces": lib.UUID{GoUUID: "i"}}},
		lib.Operation{Op: "mutate", Table: "Bridge", Where: Named("br-int"),
			Mutations: []lib.Mutation{*lib.NewMutation("ports", "insert", lib.UUID{GoUUID: "p"})}},
	)
}

// Set changes columns of an Interface, as ovs-vswitchd and OVN's controller do.
func (s *Server) Set(name string, row lib.Row) {
	s.t.Helper()
	s.Transact(lib.Operation{Op: "update", Table: "Interface", Where: Named(name), Row: row})
}

// SetID sets one external ID of an Interface.
func (s *Server) SetID(name, key, value string) {
	s.t.Helper()
	s.Transact(lib.Operation{Op: "mutate", Table: "Interface", Where: Named(name),
		Mutations: []lib.Mutation{*lib.NewMutation("external_ids", "insert", Map(map[string]string{key: value}))}})
}

// Interfaces returns the external IDs of the Interfaces in br-int, by name.
func (s *Server) Interfaces() map[string]map[string]string {
	s.t.Helper()
	all := s.Transact(
		lib.Operation{Op: "select", Table: "Bridge", Where: Named("br-int"), Columns: []string{"ports"}},
		lib.Operation{Op: "select", Table: "Port", Where: []lib.Condition{}, Columns: []string{"_uuid", "interfaces"}},
		lib.Operation{Op: "select", Table: "Interface", Where: []lib.Condition{}, Columns: []string{"_uuid", "name", "external_ids"}},
	)
	ports, list := map[lib.UUID]bool{}, map[string]map[string]string{}
	ifaces := map[lib.UUID]bool{}
	for _, b := range all[0].Rows {
		for _, u := range uuids(b["ports"]) {
			ports[u] = true
		}
	}
	for _, p := range all[1].Rows {
		if ports[p["_uuid"].(lib.UUID)] {
			for _, u := range uuids(p["interfaces"]) {
				ifaces[u] = true
			}
		}
	}
	for _, i := range all[2].Rows {
		name := i["name"].(string)
		if name == "br-int" { // the internal port of the bridge
			continue
		}
		if !ifaces[i["_uuid"].(lib.UUID)] {
			s.t.Errorf("interface %s belongs to no port of br-int", name)
		}
		list[name] = map[string]string{}
		if m, ok := i["external_ids"].(lib.OvsMap); ok {
			for k, v := range m.GoMap {
				list[name][k.(string)] = v.(string)
			}
		}
	}
	return list
}

func uuids(v any) []lib.UUID {
	if u, ok := v.(lib.UUID); ok {
		return []lib.UUID{u}
	}
	var list []lib.UUID
	if set, ok := v.(lib.OvsSet); ok {
		for _, e := range set.GoSet {
			list = append(list, e.(lib.UUID))
		}
	}
	return list
}

// Named returns the condition that selects rows by name.
func Named(name string) []lib.Condition {
	return []lib.Condition{lib.NewCondition("name", lib.ConditionEqual, name)}
}

// Map converts a map to OVSDB's notation.
func Map(m map[string]string) lib.OvsMap {
	out := lib.OvsMap{GoMap: map[any]any{}}
	for k, v := range m {
		out.GoMap[k] = v
	}
	return out
}
