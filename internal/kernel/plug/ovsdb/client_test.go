package ovsdb_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
)

var port = ovsdb.Port{
	Link: "tap3f2a9c10-76", MAC: "fa:16:3e:01:02:03", VMUUID: "5ba2e9f0-0000-4000-8000-000000000001",
	Ref: plug.Ref{Attachment: "bthaaaaaaaaaaaa", PortID: plugtest.PortA, Bridge: "br-int"},
}

// bounded bounds calls that hang.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestAttachAndDetach(t *testing.T) {
	server := plugtest.NewServer(t)
	c, ctx := server.Client(), bounded(t)
	want := map[string]map[string]string{port.Link: {
		"iface-id": plugtest.PortA, "attached-mac": port.MAC, "iface-status": "active", "vm-uuid": port.VMUUID, "berth-attachment": port.Attachment,
	}}
	server.AddInterface("other", map[string]string{"iface-id": "x"})
	want["other"] = map[string]string{"iface-id": "x"}
	for range 2 {
		plugtest.Must(t, c.Attach(ctx, port))
		if diff := cmp.Diff(want, server.Interfaces()); diff != "" {
			t.Fatal(diff)
		}
	}
	// Attach repairs the port's own external IDs and keeps those of other programs.
	server.SetID(port.Link, "ovn-installed", "true")
	server.SetID(port.Link, "attached-mac", "wrong") // an insert does not change existing values
	server.Transact(lib.Operation{Op: "update", Table: "Interface", Where: plugtest.Named(port.Link), Row: lib.Row{
		"external_ids": plugtest.Map(map[string]string{"iface-id": plugtest.PortA, "attached-mac": "wrong", "ovn-installed": "true", "berth-attachment": port.Attachment}),
	}})
	var found plug.Differences
	plugtest.Must(t, c.Check(ctx, port, &found))
	if len(found) != 3 {
		t.Errorf("differences = %q, want those of attached-mac, iface-status and vm-uuid", found)
	}
	plugtest.Must(t, c.Attach(ctx, port))
	want[port.Link]["ovn-installed"] = "true"
	if diff := cmp.Diff(want, server.Interfaces()); diff != "" {
		t.Error(diff)
	}
	for range 2 {
		plugtest.Must(t, c.Detach(ctx, port))
		delete(want, port.Link)
		if diff := cmp.Diff(want, server.Interfaces()); diff != "" {
			t.Fatal(diff)
		}
	}
}

// Rows of other ports and attachments are recognized by the full port ID and the attachment, and are kept.
func TestRowsOfOtherOwnersAreKept(t *testing.T) {
	for name, tc := range map[string]struct {
		link string
		ids  map[string]string
		err  error
		says string
	}{
		"port with the same first 11 characters": {port.Link, map[string]string{"iface-id": plugtest.PortA2, "berth-attachment": "bthbbbbbbbbbbbb"}, plug.ErrNameTaken, plugtest.PortA2},
		"port of another attachment":             {port.Link, map[string]string{"iface-id": plugtest.PortA, "berth-attachment": "bthbbbbbbbbbbbb"}, plug.ErrPortInUse, "bthbbbbbbbbbbbb"},
		"link of other software":                 {port.Link, map[string]string{"iface-id": plugtest.PortA}, plug.ErrNameTaken, "not created by Berth"},
		"port with another link":                 {"vnet7", map[string]string{"iface-id": plugtest.PortA}, plug.ErrPortInUse, "vnet7"},
	} {
		t.Run(name, func(t *testing.T) {
			server := plugtest.NewServer(t)
			c, ctx := server.Client(), bounded(t)
			server.AddInterface(tc.link, tc.ids)
			before := server.Interfaces()
			if err := c.Attach(ctx, port); !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Attach() error = %v, want %v with %q", err, tc.err, tc.says)
			}
			plugtest.Must(t, c.Detach(ctx, port))
			if diff := cmp.Diff(before, server.Interfaces()); diff != "" {
				t.Errorf("Attach() changed rows: %s", diff)
			}
		})
	}
}

func TestAttachWithoutBridge(t *testing.T) {
	server := plugtest.NewServer(t)
	other := port
	other.Bridge = "br-none"
	if err := server.Client().Attach(bounded(t), other); !errors.Is(err, plug.ErrNoBridge) {
		t.Errorf("Attach() error = %v, want %v", err, plug.ErrNoBridge)
	}
	if got := server.Interfaces(); len(got) != 0 {
		t.Errorf("interfaces after the failed Attach() = %v, want none", got)
	}
}

// Attach moves a link whose Port is in another bridge or in none.
func TestAttachMovesFromAnotherBridge(t *testing.T) {
	server := plugtest.NewServer(t)
	c, ctx := server.Client(), bounded(t)
	server.Transact(
		lib.Operation{Op: "insert", Table: "Bridge", UUIDName: "b", Row: lib.Row{"name": "br-old"}},
		lib.Operation{Op: "mutate", Table: "Open_vSwitch", Where: []lib.Condition{}, Mutations: []lib.Mutation{*lib.NewMutation("bridges", "insert", lib.UUID{GoUUID: "b"})}},
	)
	old := port
	old.Bridge = "br-old"
	plugtest.Must(t, c.Attach(ctx, old))
	plugtest.Must(t, c.Attach(ctx, port))
	if got := server.Interfaces(); len(got) != 1 || got[port.Link]["iface-id"] != plugtest.PortA {
		t.Errorf("interfaces of br-int = %v, want that of port A", got)
	}
}

func TestAwait(t *testing.T) {
	server := plugtest.NewServer(t)
	c, ctx := server.Client(), bounded(t)
	endsWith(t, c, "has no interface")
	plugtest.Must(t, c.Attach(ctx, port))
	ready := make(chan error, 1)
	go func() { ready <- c.Await(ctx, port, true) }()
	server.Set(port.Link, lib.Row{"error": lib.OvsSet{GoSet: []any{"could not open network device"}}})
	server.Set(port.Link, lib.Row{"error": lib.OvsSet{}, "ofport": 5})
	if err := c.Await(ctx, port, false); err != nil {
		t.Errorf("Await() without OVN: %v", err)
	}
	select {
	case err := <-ready:
		t.Fatalf("Await() returned before ovn-installed was set: %v", err)
	default:
	}
	server.SetID(port.Link, "ovn-installed", "true")
	if err := <-ready; err != nil {
		t.Errorf("Await() after ovn-installed was set: %v", err)
	}
}

// The error after a timeout contains the message of Open vSwitch.
func TestAwaitReportsWhatIsMissing(t *testing.T) {
	server := plugtest.NewServer(t)
	c, ctx := server.Client(), bounded(t)
	plugtest.Must(t, c.Attach(ctx, port))
	for _, tc := range []struct {
		row  lib.Row
		says string
	}{
		{lib.Row{}, "is ovs-vswitchd running?"},
		{lib.Row{"ofport": -1}, "cannot open"},
		{lib.Row{"error": lib.OvsSet{GoSet: []any{"No such device"}}}, "No such device"},
		{lib.Row{"error": lib.OvsSet{}, "ofport": 1}, "ovn-installed"},
	} {
		if len(tc.row) > 0 {
			server.Set(port.Link, tc.row)
		}
		endsWith(t, c, tc.says)
	}
}

// endsWith repeats a wait that times out until its error has the expected text, because a slow
// machine may time out before the query.
func endsWith(t *testing.T, c *ovsdb.Client, says string) {
	t.Helper()
	plugtest.Within(t, "Await() error contains "+says, func() bool {
		short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		err := c.Await(short, port, true)
		return errors.Is(err, plug.ErrNotReady) && strings.Contains(err.Error(), says)
	})
}

// Calls wait for a server that is down. They use a server that comes back without its data, even if they started to
// wait before.
func TestServerOutage(t *testing.T) {
	server := plugtest.NewServer(t)
	c, ctx := server.Client(), bounded(t)
	plugtest.Must(t, c.Attach(ctx, port))
	waiting := make(chan error, 1)
	go func() { waiting <- c.Await(ctx, port, true) }()
	server.Stop()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := c.Attach(short, port); !errors.Is(err, plug.ErrUnreachable) {
		t.Errorf("Attach() without a server: error = %v, want %v", err, plug.ErrUnreachable)
	}
	server.Start()
	plugtest.Within(t, "Attach on the new server", func() bool { return c.Attach(ctx, port) == nil })
	server.Set(port.Link, lib.Row{"ofport": 1})
	server.SetID(port.Link, "ovn-installed", "true")
	if err := <-waiting; err != nil {
		t.Errorf("Await() across the loss of the connection: %v", err)
	}
	c.Close()
	if err := c.Attach(ctx, port); !errors.Is(err, plug.ErrUnreachable) {
		t.Errorf("Attach() after Close(): error = %v, want %v", err, plug.ErrUnreachable)
	}
}

// If a call ends while there is no server, its error is the refused connection and not the end of the call.
func TestRefusedConnectionIsReported(t *testing.T) {
	server := plugtest.NewServer(t)
	server.Stop()
	ctx, cancel := context.WithCancel(bounded(t))
	defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
	if err := server.Client().Attach(ctx, port); !errors.Is(err, plug.ErrUnreachable) || errors.Is(err, context.Canceled) {
		t.Errorf("Attach() error = %v, want %v and not %v", err, plug.ErrUnreachable, context.Canceled)
	}
}

// Watch reports changes to Berth's rows by other programs, but not values that OVN writes into them.
func TestWatch(t *testing.T) {
	server := plugtest.NewServer(t)
	c := server.Client()
	ctx, cancel := context.WithCancel(bounded(t))
	changes, done := make(chan []ovsdb.Change, 100), make(chan struct{})
	go func() { defer close(done); c.Watch(ctx, func(list []ovsdb.Change) { changes <- list }) }()
	expect := func(what string, want ovsdb.Change) {
		t.Helper()
		select {
		case got := <-changes:
			if len(got) != 1 || got[0] != want {
				t.Errorf("%s: changes = %v, want %v", what, got, want)
			}
		case <-ctx.Done():
			t.Fatalf("%s: no change reported", what)
		}
	}
	mine, anything := ovsdb.Change{Attachment: port.Attachment, PortID: port.PortID}, ovsdb.Change{}
	expect("at the start", anything)
	plugtest.Must(t, c.Attach(ctx, port))
	server.SetID(port.Link, "ovn-installed", "true")
	server.Set(port.Link, lib.Row{"ofport": 7})
	server.AddInterface("other", map[string]string{"iface-id": "x"})
	server.SetID("other", "iface-status", "inactive")
	server.Set(port.Link, lib.Row{"external_ids": plugtest.Map(map[string]string{"iface-id": "x", "berth-attachment": port.Attachment})})
	expect("after a change of iface-id", mine)
	server.Stop()
	server.Start()
	expect("after a loss of the connection", anything)
	plugtest.Must(t, c.Attach(ctx, port))
	plugtest.Must(t, c.Detach(ctx, port))
	expect("after the row was removed", mine)
	cancel()
	<-done
}

func TestEndpoints(t *testing.T) {
	for _, e := range []string{"", "unix:", "unix:relative", "ssl:1.2.3.4:6640", "/run/openvswitch/db.sock", "tcp:"} {
		if _, err := ovsdb.New(e, nil); err == nil {
			t.Errorf("New(%q) succeeded, want an error", e)
		}
	}
}
