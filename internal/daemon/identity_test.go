package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/cloud"
)

// metadata answers as it is told.
type metadata struct {
	id  cloud.Identity
	err error
}

func (m metadata) Identity(context.Context) (cloud.Identity, error) { return m.id, m.err }

func TestIdentify(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	id := cloud.Identity{
		InstanceID: "i-1", InstanceType: "m5.large", Region: "eu-west-1", PrimaryMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		PrimaryIPv4: netip.MustParseAddr("10.0.0.4"), VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	}
	away := metadata{err: errors.New("connection refused")}
	dir := t.TempDir()
	ask := func(m cloud.Metadata, boot string) (cloud.Identity, error) {
		return Identify(context.Background(), m, dir, boot, quiet)
	}
	if _, err := ask(away, "boot-1"); !errors.Is(err, away.err) {
		t.Errorf("first start without metadata service: %v", err)
	}
	if got, err := ask(metadata{id: id}, "boot-1"); err != nil || got.InstanceID != "i-1" {
		t.Fatalf("%+v, %v", got, err)
	}
	got, err := ask(away, "boot-1")
	if diff := cmp.Diff(id, got, addrComparer, prefixComparer); err != nil || diff != "" {
		t.Errorf("from memory: %v %s", err, diff)
	}
	if _, err := ask(away, "boot-2"); err == nil {
		t.Error("an identity of another boot was used")
	}
	id.Zone = "eu-west-1b"
	if got, err := ask(metadata{id: id}, "boot-1"); err != nil || got.Zone != "eu-west-1b" {
		t.Errorf("the metadata service does not outrank memory: %+v, %v", got, err)
	}
	other := id
	other.InstanceID = "i-2"
	if got, err := ask(metadata{id: other}, "boot-1"); err != nil || got.InstanceID != "i-1" {
		t.Errorf("another instance within a boot: %+v, %v; want i-1", got, err)
	}
	if got, err := ask(away, "boot-1"); err != nil || got.InstanceID != "i-1" {
		t.Errorf("another instance within a boot was remembered: %+v, %v", got, err)
	}
	if got, err := ask(metadata{id: other}, "boot-2"); err != nil || got.InstanceID != "i-2" {
		t.Errorf("another instance after a boot, as of an image: %+v, %v; want i-2", got, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, identityFile), []byte("{"), 0o600))
	if _, err := ask(away, "boot-1"); err == nil {
		t.Error("a damaged file was used")
	}
}

var (
	addrComparer   = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	prefixComparer = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
)

// runtimeService is a container runtime that has some sandboxes.
type runtimeService struct {
	runtime.UnimplementedRuntimeServiceServer
	ids []string
}

func (s *runtimeService) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	reply := &runtime.ListPodSandboxResponse{}
	for _, id := range s.ids {
		reply.Items = append(reply.Items, &runtime.PodSandbox{Id: id, State: runtime.PodSandboxState_SANDBOX_NOTREADY})
	}
	return reply, nil
}

func TestRuntimeListsItsSandboxes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	r, err := NewRuntime(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Sandboxes(within(t)); err == nil {
		t.Error("a runtime that is down listed sandboxes")
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtime.RegisterRuntimeServiceServer(server, &runtimeService{ids: []string{"a", "b"}})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	second, err := NewRuntime(socket) // without the first one's pause before it dials again
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	got, err := second.Sandboxes(within(t))
	if diff := cmp.Diff(map[string]bool{"a": true, "b": true}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}
