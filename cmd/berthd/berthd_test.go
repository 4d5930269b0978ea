package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/test/harness"
)

// execute runs the command with the flags, and returns its output.
func execute(ctx context.Context, flags ...string) (string, error) {
	var out bytes.Buffer
	cmd := command.Command()
	cmd.SetArgs(flags)
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// freeAddress returns an address that no other process uses before it is listened on: connections on this machine have
// the source 127.0.0.1.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestStartWithoutMetadataServiceIsReported(t *testing.T) {
	dir, web, metadata := t.TempDir(), freeAddress(t), freeAddress(t)
	socket := filepath.Join(dir, "berthd.sock")
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := execute(running, "--state-dir="+dir, "--socket="+socket, "--imds-endpoint=http://"+metadata,
			"--introspection-address=", "--metrics-address="+web, "--log-level=error")
		ended <- err
	}()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	harness.Eventually(t, time.Minute, "STATUS reports what berthd is waiting for", func() error { // the daemon listens before it is ready
		_, err := rpc.NewNodeClient(conn).Status(ctx, &rpc.StatusRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return errors.New("STATUS succeeded, want an error")
		}
		if !strings.Contains(err.Error(), "berthd is starting: the instance metadata service") {
			return err
		}
		return nil
	})
	for path, want := range map[string]int{"/livez": 200, "/readyz": 503, "/metrics": 200} {
		r, err := http.Get("http://" + web + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("GET %s = %d %s", path, r.StatusCode, body)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("berthd exited with %v", err)
	}
}

func TestAddressInUseNamesTheFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	refused(t, []string{"--introspection-address " + l.Addr().String()},
		"--state-dir="+dir, "--socket="+dir+"/s", "--metrics-address=", "--introspection-address="+l.Addr().String(), "--log-level=error")
}

// refused executes the command and asserts that its error contains each of the names.
func refused(t *testing.T, names []string, flags ...string) {
	t.Helper()
	_, err := execute(t.Context(), flags...)
	for _, name := range names {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error = %v, want it to contain %s", err, name)
		}
	}
}

func TestAllInvalidSettingsAreReported(t *testing.T) {
	t.Setenv("WARM_IP_TARGET", "many")
	refused(t, []string{"--no-such-flag", "WARM_IP_TARGET"}, "--no-such-flag")
}

func TestReferencePages(t *testing.T) {
	for name, want := range map[string]string{"config-reference": "`--warm-wait`", "metrics-reference": "`berth_addresses`"} {
		if out, err := execute(t.Context(), name); err != nil || !strings.Contains(out, want) {
			t.Errorf("output of %s lacks %[3]s (error: %[2]v)", name, err, want)
		}
	}
}

func TestReservedExportTableIsRejected(t *testing.T) {
	dir := t.TempDir()
	refused(t, []string{"--export-table"}, "--ipam=pool", "--export-table=19000", "--state-dir="+dir, "--socket="+dir+"/s",
		"--metrics-address=", "--introspection-address=", "--log-level=error")
}
