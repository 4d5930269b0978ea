package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/statefile"
	"github.com/berthnet/berth/test/harness/samples"
)

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestIdentify(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	id := cloud.Identity{
		InstanceID: "i-1", InstanceType: "m5.large", Region: "eu-west-1", PrimaryMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		PrimaryIPv4: netip.MustParseAddr("10.0.0.4"), VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	}
	away := metadata{err: errors.New("connection refused")}
	dir := t.TempDir()
	ask := func(m cloud.Metadata, boot string) (cloud.Identity, error) {
		return identify(context.Background(), m, dir, boot, quiet)
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

// On a full disk, and where a FIFO is in place of its file, the node's identity is
// what the metadata service says, and nothing is waited for.
func TestIdentityThatCannotBeRemembered(t *testing.T) {
	id := cloud.Identity{InstanceID: "i-1"}
	for name, spoil := range map[string]func(dir string) error{
		"full": func(dir string) error {
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
				return err
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
				return fmt.Errorf("the folder is not full: %w", err)
			}
			return nil
		},
		"FIFOs": func(dir string) error {
			return errors.Join(unix.Mkfifo(filepath.Join(dir, identityFile), 0o600), unix.Mkfifo(filepath.Join(dir, "."+identityFile+".new"), 0o600))
		},
	} {
		dir := t.TempDir()
		if err := spoil(dir); err != nil {
			t.Fatalf("%s: this test mounts a file system and needs root: %v", name, err)
		}
		if _, ok := readIdentity(dir, "boot-1"); ok {
			t.Errorf("%s: there is an identity", name)
		}
		got, err := identify(t.Context(), metadata{id: id}, dir, "boot-1", slog.New(slog.DiscardHandler))
		if err != nil || got.InstanceID != "i-1" {
			t.Errorf("%s: the node is %+v, %v", name, got, err)
		}
	}
}

var (
	addrComparer   = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	prefixComparer = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
)

// Files of all releases are read, and every release can read the file that is written.
func TestStoredIdentity(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, identityFile)
	samples.Check(t,
		samples.Format{Files: identityFile, Type: reflect.TypeFor[savedIdentity](), Again: func(data []byte) ([]byte, error) {
			var boot struct{ BootID string }
			if err := errors.Join(os.WriteFile(path, data, 0o600), statefile.Decode(data, &boot)); err != nil {
				return nil, err
			}
			id, ok := readIdentity(dir, boot.BootID)
			if !ok {
				return nil, errors.New("it is not taken for this node's")
			}
			if err := statefile.ReplaceJSON(dir, identityFile, savedIdentity{boot.BootID, id}); err != nil {
				return nil, err
			}
			return os.ReadFile(path)
		}},
	)
}
