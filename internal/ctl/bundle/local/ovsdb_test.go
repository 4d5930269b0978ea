package local

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/test/harness"
)

// collect returns a bundle of the Open vSwitch database at an endpoint.
func collect(t *testing.T, endpoint string) (files map[string][]byte, index archive.Index) {
	t.Helper()
	n := node{NodeOptions: bundle.NodeOptions{Timeout: 5 * time.Second, Root: "/"}, ports: true, ovsdbAt: endpoint}
	var out bytes.Buffer
	a := archive.New(&out, "x", "node-1", archive.Limits{File: 1 << 20, Total: 8 << 20}, time.Now)
	harness.OK(t, a.Collect(t.Context(), 1, []archive.Part{n.part("ovsdb", n.ovsdb)}))
	_, err := a.Close()
	harness.OK(t, err)
	files, index, err = archive.Open(&out)
	harness.OK(t, err)
	return files, index
}

// The bundle has the Open vSwitch rows with Berth's external ID, and no others.
func TestOpenVSwitchRows(t *testing.T) {
	if ovsMark != ovsdb.AttachmentID {
		t.Fatalf("ovsMark = %q, want the external ID of Berth's rows, %q", ovsMark, ovsdb.AttachmentID)
	}
	server := plugtest.NewServer(t)
	server.AddInterface("bthone", map[string]string{ovsdb.AttachmentID: "berth/c-1/eth0", ovsdb.IfaceID: "port-1"})
	server.AddInterface("tapvm", map[string]string{ovsdb.IfaceID: "port-of-a-machine", "vm-secret": "planted"})
	files, index := collect(t, server.Endpoint)
	var rows map[string][]map[string]any
	harness.OK(t, json.Unmarshal(files["ovsdb.json"], &rows))
	if len(rows["interfaces"]) != 1 || rows["interfaces"][0]["name"] != "bthone" || len(rows["bridges"]) != 1 || len(index.Errors) > 0 {
		t.Errorf("ovsdb.json = %s\nerrors %+v", files["ovsdb.json"], index.Errors)
	}
	if !bytes.Contains(files["ovsdb.json"], []byte("port-1")) || bytes.Contains(files["ovsdb.json"], []byte("planted")) {
		t.Errorf("ovsdb.json lacks the port or contains a secret: %s", files["ovsdb.json"])
	}
}

// A database that is missing or speaks another protocol is reported as an error without delay.
func TestOpenVSwitchErrors(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct{ says, want string }{
		"absent": {"", "reach Open vSwitch's database"},
		"noise":  {"HTTP/1.1 400 Bad Request\r\n\r\n", "read the answer"},
		"error":  {`{"id":1,"error":"unknown database","result":null}`, "unknown database"},
		"table":  {`{"id":1,"error":null,"result":[{"error":"constraint violation","details":"no column x"},{"rows":[]},{"rows":[]},{"rows":[]}]}`, "table Interface of Open vSwitch's database: constraint violation: no column x"},
	} {
		path := filepath.Join(dir, name)
		if name != "absent" {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
			harness.OK(t, err)
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				var asked any
				_ = json.NewDecoder(conn).Decode(&asked) // closing before the request is read may discard the response
				_, _ = conn.Write([]byte(tt.says))
				_ = conn.Close()
			}()
		}
		_, index := collect(t, "unix:"+path)
		if len(index.Errors) != 1 || !strings.Contains(index.Errors[0].Error, tt.want) {
			t.Errorf("%s: errors = %+v, want %q", name, index.Errors, tt.want)
		}
	}
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "silent"))
	harness.OK(t, err)
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := askOVSDB(ctx, "unix:"+filepath.Join(dir, "silent"), 1<<20); err == nil {
		t.Error("askOVSDB() succeeded with a silent database")
	}
}
