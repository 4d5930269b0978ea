package enisource

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/samples"
)

func TestFilesKeepAnInventoryAndAnIntent(t *testing.T) {
	f := Files{Dir: filepath.Join(t.TempDir(), "new")}
	if _, ok, err := f.Load(); ok || err != nil {
		t.Errorf("from nothing: %v %v", ok, err)
	}
	want := eni.Inventory{
		InstanceID: "i-1", InstanceType: "t3.small", Limits: cloud.Limits{MaxENIs: 3, IPv4PerENI: 4}, Usable: true, At: time.Unix(7, 0).UTC(),
		ENIs: []eni.ENI{{ID: "eni-1", MAC: mac.Addr{2, 0, 0, 0, 0, 1}, Primary: true, Serves: true, Subnet: netip.MustParsePrefix("10.0.0.0/24"),
			Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.16/28")}}},
		Releasing: []eni.Release{{Prefix: netip.MustParsePrefix("10.0.0.5/32"), ENI: "eni-1", Since: time.Unix(8, 0).UTC()}},
		Leaving:   []eni.Leave{{ENI: "eni-2", DeviceIndex: 1, Since: time.Unix(9, 0).UTC()}},
	}
	check.OK(t, f.Save(want))
	got, ok, err := f.Load()
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" || !ok || err != nil {
		t.Errorf("stored and loaded differ (%v, %v):\n%s", ok, err, d)
	}
	in := f.Intents()
	intent := eni.Intent{Index: 2, At: time.Unix(1, 0).UTC(), Request: cloud.CreateENI{ClientToken: "berth-x", Amount: cloud.Amount{Addresses: 3}}}
	check.OK(t, in.Save(intent))
	if got, ok, err := in.Load(); !ok || err != nil || cmp.Diff(intent, got, cmpopts.EquateComparable(netip.Addr{})) != "" {
		t.Errorf("intent %+v %v %v", got, ok, err)
	}
	// As an earlier version stored it.
	const stored = `{
  "request": {
    "SubnetID": "subnet-1",
    "Groups": ["sg-1"],
    "Description": "Berth (i-1)",
    "Tags": {"berth.dev/instance-id": "i-1"},
    "ClientToken": "berth-y",
    "Addresses": 0,
    "Prefixes": 2
  },
  "deviceIndex": 2,
  "at": "1970-01-01T00:00:01Z"
}`
	check.OK(t, os.WriteFile(filepath.Join(f.Dir, intentName), []byte(stored), 0o600))
	intent.Request = cloud.CreateENI{
		SubnetID: "subnet-1", Groups: []string{"sg-1"}, Description: "Berth (i-1)", Tags: map[string]string{"berth.dev/instance-id": "i-1"},
		ClientToken: "berth-y", Amount: cloud.Amount{Prefixes: 2},
	}
	if got, ok, err := in.Load(); !ok || err != nil || cmp.Diff(intent, got, cmpopts.EquateComparable(netip.Addr{})) != "" {
		t.Errorf("stored intent %+v %v %v", got, ok, err)
	}
	for range 2 { // clearing what is not there is no error
		check.NoError(t, in.Clear())
	}
	if _, ok, err := in.Load(); ok || err != nil {
		t.Errorf("after a clear: %v %v", ok, err)
	}
}

// A crash before the rename leaves the former file intact.
func TestFilesAreReplacedWhole(t *testing.T) {
	f := Files{Dir: t.TempDir()}
	check.OK(t, f.Save(eni.Inventory{InstanceID: "i-1"}))
	restore := check.Must(failpoint.Set("inventory.save.before=error"))(t)
	defer restore()
	if err := f.Save(eni.Inventory{InstanceID: "i-2"}); err == nil {
		t.Error("the failure was not reported")
	}
	if inv, ok, err := f.Load(); !ok || err != nil || inv.InstanceID != "i-1" {
		t.Errorf("%+v %v %v", inv, ok, err)
	}
}

func TestDamagedFilesAreErrors(t *testing.T) {
	f := Files{Dir: t.TempDir()}
	for _, name := range []string{inventoryName, intentName} {
		check.OK(t, os.WriteFile(filepath.Join(f.Dir, name), []byte(`{"instanceID":`), 0o600))
	}
	if _, ok, err := f.Load(); ok || err == nil {
		t.Errorf("damaged inventory: %v %v", ok, err)
	}
	if _, ok, err := f.Intents().Load(); ok || err == nil {
		t.Errorf("damaged intent: %v %v", ok, err)
	}
}

// The inventory and the intent of every release can be read, and what is written has all that each
// release reads.
func TestStoredInventoryAndIntent(t *testing.T) {
	f := Files{Dir: t.TempDir()}
	through := func(name string, rewrite func() (bool, error)) func([]byte) ([]byte, error) {
		path := filepath.Join(f.Dir, name)
		return func(data []byte) ([]byte, error) {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				return nil, err
			}
			if ok, err := rewrite(); err != nil || !ok {
				return nil, err
			}
			return os.ReadFile(path)
		}
	}
	samples.Check(t,
		samples.Format{Files: "inventory*.json", Type: reflect.TypeFor[eni.Inventory](), Again: through(inventoryName, func() (bool, error) {
			inv, ok, err := f.Load()
			if err == nil && ok {
				err = f.Save(inv)
			}
			return ok, err
		})},
		samples.Format{Files: "eni-intent*.json", Type: reflect.TypeFor[eni.Intent](), Again: through(intentName, func() (bool, error) {
			intent, ok, err := f.Intents().Load()
			if err == nil && ok {
				err = f.Intents().Save(intent)
			}
			return ok, err
		})},
	)
}
