package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/test/harness"
)

// start runs the command with these flags until the test or stop ends it.
func start(t *testing.T, flags ...string) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := command.Command()
	cmd.SetArgs(flags)
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	ended := false
	stop = func() error {
		cancel()
		if ended {
			return nil
		}
		ended = true
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			t.Fatal("berthd did not end")
			return nil
		}
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

// deadMetadata is the URL of a metadata service that refuses connections.
func deadMetadata(t *testing.T) string {
	t.Helper()
	return "http://" + freeAddress(t)
}

// freeAddress is one that nobody else takes until it is listened at: all that
// connects on this machine does so from 127.0.0.1.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestStartWithoutMetadataServiceSaysSo(t *testing.T) {
	dir, web := t.TempDir(), freeAddress(t)
	socket := filepath.Join(dir, "berthd.sock")
	stop := start(t, "--state-dir="+dir, "--socket="+socket, "--imds-endpoint="+deadMetadata(t),
		"--introspection-address=", "--metrics-address="+web, "--log-level=error")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	harness.Eventually(t, time.Minute, "STATUS says what is waited for", func() error { // it listens first
		_, err := rpc.NewNodeClient(conn).Status(ctx, &rpc.StatusRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return errors.New("it said that all is well")
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
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
	if err := stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestAddressInUseNamesTheFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	cmd := command.Command()
	cmd.SetArgs([]string{"--state-dir=" + dir, "--socket=" + dir + "/s", "--metrics-address=", "--introspection-address=" + l.Addr().String(), "--log-level=error"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "--introspection-address "+l.Addr().String()) {
		t.Errorf("err = %v", err)
	}
}

func TestWrongFlagAndVariableAreNamedTogether(t *testing.T) {
	t.Setenv("WARM_IP_TARGET", "many")
	cmd := command.Command()
	cmd.SetArgs([]string{"--no-such-flag"})
	cmd.SetOut(io.Discard)
	err := cmd.Execute()
	if err == nil || !strings.Contains(err.Error(), "--no-such-flag") || !strings.Contains(err.Error(), "WARM_IP_TARGET") {
		t.Errorf("err = %v", err)
	}
}

func TestReferences(t *testing.T) {
	for name, want := range map[string]string{"config-reference": "`--warm-wait`", "metrics-reference": "`berth_addresses`"} {
		var out bytes.Buffer
		cmd := command.Command()
		cmd.SetArgs([]string{name})
		cmd.SetOut(&out)
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, lacks %s", name, err, want)
		}
	}
}

func TestLogLevelAndFormat(t *testing.T) {
	var out bytes.Buffer
	log := configWith(t, "--log-level=warn", "--log-format=json").Logger(&out)
	log.Info("hidden")
	log.Log(context.Background(), slog.LevelWarn, "shown")
	if s := out.String(); strings.Contains(s, "hidden") || !strings.Contains(s, `"msg":"shown"`) {
		t.Errorf("log %s", s)
	}
}

func configWith(t *testing.T, args ...string) config.Config {
	t.Helper()
	flags := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	l := config.NewLoader(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	c, err := l.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestExportTableOfBerthsOwnIsRefused(t *testing.T) {
	dir := t.TempDir()
	cmd := command.Command()
	cmd.SetArgs([]string{"--ipam=pool", "--export-table=19000", "--state-dir=" + dir, "--socket=" + dir + "/s", "--metrics-address=", "--introspection-address=", "--log-level=error"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "--export-table") {
		t.Errorf("err = %v", err)
	}
}
