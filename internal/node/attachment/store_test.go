package attachment

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/test/harness/samples"
)

var (
	testNode = Node{InstanceID: "i-1", BootID: "boot-1"}
	quiet    = slog.New(slog.DiscardHandler)
	addrCmp  = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
)

func testRecord(container, addr string) Record {
	return Record{
		Key:      Key{Network: "berth", ContainerID: container, IfName: "eth0"},
		Pod:      Pod{Namespace: "default", Name: container},
		Lease:    Lease{IPv4: netip.MustParseAddr(addr), Origin: introspect.Origin{ENI: "eni-1"}},
		Netns:    Netns{Path: "/run/netns/" + container, Dev: 4, Inode: 4026531840},
		HostLink: "bth" + container,
		State:    Ready,
		Since:    time.Unix(1700000000, 0).UTC(),
	}
}

func openStore(t *testing.T, dir string, node Node) (*Store, []Quarantined) {
	t.Helper()
	s, bad, err := Open(dir, node, quiet)
	must(t, err)
	return s, bad
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustPut(t *testing.T, s *Store, recs ...Record) {
	t.Helper()
	for _, r := range recs {
		must(t, s.Put(r))
	}
}

func TestRecordsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	want := testRecord("c1", "10.0.0.5")
	mustPut(t, s, testRecord("c2", "10.0.0.6"), want)
	cool := Cooling{Addr: netip.MustParseAddr("fd00::5"), Key: want.Key, HostLink: "bthold", ReleasedBoot: 5 * time.Second}
	must(t, s.PutCooling(cool))
	must(t, s.Delete(Key{Network: "berth", ContainerID: "c2", IfName: "eth0"}))

	s, bad := openStore(t, dir, testNode)
	if len(bad) != 0 {
		t.Fatalf("quarantined %v, want none", bad)
	}
	want.Version, want.InstanceID, want.BootID = Version, "i-1", "boot-1"
	if diff := cmp.Diff([]Record{want}, s.Records(), addrCmp); diff != "" {
		t.Errorf("records after a restart (-want +got):\n%s", diff)
	}
	cool.Version, cool.InstanceID, cool.BootID = Version, "i-1", "boot-1"
	if diff := cmp.Diff([]Cooling{cool}, s.CoolingRecords(), addrCmp); diff != "" {
		t.Errorf("cooling records after a restart (-want +got):\n%s", diff)
	}
	if r, ok := s.ByAddr(want.Lease.IPv4); !ok || r.Key != want.Key {
		t.Errorf("ByAddr(%v) = %v, %v, want %v", want.Lease.IPv4, r.Key, ok, want.Key)
	}
	if _, ok := s.ByAddr(netip.MustParseAddr("10.0.0.6")); ok {
		t.Error("the address of a deleted attachment is still indexed")
	}
	info, err := os.Stat(filepath.Join(dir, recordFile(want.HostLink)))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of a record = %v, %v; want 0600", info.Mode(), err)
	}
}

// An address, including a node-local one, belongs to one record, even after a restart, until the record changes or is deleted.
func TestPutRejectsAddressOfAnotherAttachment(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	refused := func(r Record, addr string) {
		t.Helper()
		if err := s.Put(r); err == nil || !strings.Contains(err.Error(), addr+" is held by berth/c1/eth0") {
			t.Fatalf("Put() = %v, want error that names the holder of %s", err, addr)
		}
	}
	a, b := testRecord("c1", "10.0.0.5"), testRecord("c2", "10.0.0.6")
	a.Lease.NodeLocal = netip.MustParseAddr("fd00::ac:5")
	b.Lease.NodeLocal = a.Lease.NodeLocal
	mustPut(t, s, a)
	for range 2 {
		refused(testRecord("c2", "10.0.0.5"), "10.0.0.5")
		refused(b, "fd00::ac:5")
		s, _ = openStore(t, dir, testNode)
	}
	a.Lease.IPv4 = netip.MustParseAddr("10.0.0.9")
	mustPut(t, s, a, testRecord("c2", "10.0.0.5"))
	must(t, s.Delete(a.Key))
	mustPut(t, s, b)
	if holder, ok := s.ByAddr(b.Lease.NodeLocal); !ok || holder.Key != b.Key {
		t.Errorf("%s is held by %v, want %v", b.Lease.NodeLocal, holder.Key, b.Key)
	}
}

func TestFailedPutReservesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	s, _ := openStore(t, dir, testNode)
	must(t, os.RemoveAll(dir))
	if err := s.Put(testRecord("c1", "10.0.0.5")); err == nil {
		t.Fatal("Put into a missing directory succeeded")
	}
	if s.Probe() == nil {
		t.Error("Probe() succeeded with a missing directory")
	}
	must(t, os.Mkdir(dir, 0o700))
	must(t, s.Probe())
	mustPut(t, s, testRecord("c2", "10.0.0.5"))
}

func TestDamagedRecordsAreQuarantined(t *testing.T) {
	r := testRecord("c1", "10.0.0.5")
	r.InstanceID, r.BootID = "i-1", "boot-1"
	whole, err := r.Encode()
	must(t, err)
	name := recordFile(r.HostLink)
	tests := map[string]struct {
		file, content string
		addrs         []netip.Addr
		cooling       bool
	}{
		"truncated":              {file: name, content: string(whole[:len(whole)-20]), addrs: []netip.Addr{r.Lease.IPv4}},
		"empty":                  {file: name},
		"unknown version":        {file: name, content: strings.Replace(string(whole), `"version":1`, `"version":99`, 1), addrs: []netip.Addr{r.Lease.IPv4}},
		"path as link":           {file: name, content: strings.Replace(string(whole), `"bthc1"`, `"../../x"`, 1), addrs: []netip.Addr{r.Lease.IPv4}},
		"no address":             {file: name, content: strings.Replace(string(whole), `"ipv4":"10.0.0.5",`, "", 1)},
		"record of another file": {file: recordFile("bthother"), content: string(whole), addrs: []netip.Addr{r.Lease.IPv4}},
		"binary":                 {file: name, content: "\x00\xff\x00"},
		"data after the end":     {file: name, content: string(whole) + "{}", addrs: []netip.Addr{r.Lease.IPv4}},
		"cooling":                {file: "cooling-10.0.0.7.json", content: "{", addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, cooling: true},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, tt.file), []byte(tt.content), 0o600))
			for range 2 { // the second start finds the .bad file
				s, bad := openStore(t, dir, testNode)
				if len(s.Records())+len(s.CoolingRecords()) != 0 {
					t.Fatal("a damaged record was indexed")
				}
				if len(bad) != 1 {
					t.Fatalf("%d records quarantined, want 1", len(bad))
				}
				if diff := cmp.Diff(tt.addrs, bad[0].Addresses, addrCmp); diff != "" {
					t.Errorf("addresses of the damaged record (-want +got):\n%s", diff)
				}
				if want := strings.TrimSuffix(strings.TrimPrefix(tt.file, recordPrefix), recordSuffix); !tt.cooling && bad[0].HostLink != want {
					t.Errorf("host link = %q, want %q", bad[0].HostLink, want)
				}
				if bad[0].Cooling != tt.cooling || bad[0].File != tt.file+".bad" {
					t.Errorf("quarantined = %+v, want file %s.bad", bad[0], tt.file)
				}
			}
			s, bad := openStore(t, dir, testNode)
			must(t, s.Discard(bad[0]))
			if _, bad = openStore(t, dir, testNode); len(bad) != 0 {
				t.Error("a discarded file was read again")
			}
		})
	}
}

func TestRecordsOfAnotherInstanceAreNeverUsed(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, Node{InstanceID: "i-other", BootID: "boot-1"})
	mustPut(t, s, testRecord("c1", "10.0.0.5"))
	must(t, s.PutCooling(Cooling{Addr: netip.MustParseAddr("10.0.0.6")}))
	s, bad := openStore(t, dir, testNode)
	if len(s.Records())+len(s.CoolingRecords())+len(bad) != 0 {
		t.Fatalf("records of another instance were used: records %v, cooling %v, quarantined %v", s.Records(), s.CoolingRecords(), bad)
	}
	mustPut(t, s, testRecord("c1", "10.0.0.5"))
}

func TestLeftoversOfACrashedWriteAreRemoved(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, tmpPrefix+"7"), []byte("{"), 0o600))
	openStore(t, dir, testNode)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Fatalf("directory has %v, error %v; want no files", left, err)
	}
}

// Beside a daemon, whose file is half written, Peek changes nothing. A quarantined record is damaged although it can be read.
func TestPeekChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	r := testRecord("c1", "10.0.0.5")
	mustPut(t, s, r)
	data, err := os.ReadFile(filepath.Join(dir, recordFile(r.HostLink)))
	must(t, err)
	half := filepath.Join(dir, tmpPrefix+"1")
	must(t, os.WriteFile(half, []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, recordFile("other")+badSuffix), data, 0o600))
	records, damaged, err := Peek(dir, testNode.InstanceID)
	if err != nil || len(records) != 1 || damaged != 1 || records[0].Key != r.Key {
		t.Errorf("Peek() = %+v, %d damaged, %v; want %s and one damaged", records, damaged, err, r.Key)
	}
	if _, err := os.Stat(half); err != nil {
		t.Errorf("the daemon's file: %v", err)
	}
}

func TestConcurrentPuts(t *testing.T) {
	dir := t.TempDir()
	s, _ := openStore(t, dir, testNode)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			r := testRecord("c"+strconv.Itoa(i), netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}).String())
			for _, st := range []State{Pending, Ready} {
				r.State = st
				if err := s.Put(r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	again, bad := openStore(t, dir, testNode)
	if len(again.Records()) != 50 || len(bad) != 0 {
		t.Errorf("%d records and %d quarantined, want 50 and 0", len(again.Records()), len(bad))
	}
}

func FuzzLoad(f *testing.F) {
	r := testRecord("c1", "10.0.0.5")
	r.InstanceID, r.BootID = "i-1", "boot-1"
	whole, err := r.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:40])
	f.Add([]byte(`{"version":1,"address":"10.0.0.7","key":{},"releasedBoot":5,"bootID":"b","instanceID":"i-1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := DecodeRecord(data); err == nil {
			again, err := got.Encode()
			if err != nil {
				t.Fatalf("encoding a decoded record: %v", err)
			}
			if back, err := DecodeRecord(again); err != nil || back.Key != got.Key || back.Lease != got.Lease {
				t.Fatalf("round trip of %s = %+v, %v", again, back, err)
			}
		}
		if got, err := DecodeCooling(data); err == nil && !got.Addr.IsValid() {
			t.Fatal("a cooling record without an address was accepted")
		}
		salvage(recordFile(r.HostLink)+badSuffix, data, nil)
	})
}

func BenchmarkPut(b *testing.B) {
	dir, err := os.MkdirTemp("/dev/shm", "berth-store-")
	if err != nil {
		b.Fatalf("the benchmark needs a tmpfs at /dev/shm: %v", err)
	}
	defer os.RemoveAll(dir)
	s, _, err := Open(dir, testNode, quiet)
	if err != nil {
		b.Fatal(err)
	}
	r := testRecord("c1", "10.0.0.5")
	for b.Loop() {
		if err := s.Put(r); err != nil {
			b.Fatal(err)
		}
	}
}

// Earlier versions also wrote the ENI into cooling records.
func TestReadsCoolingRecordWithENI(t *testing.T) {
	stored := `{"version":1,"address":"10.0.0.7","eni":"eni-0a","key":{"network":"berth","containerID":"c1","ifName":"eth0"},` +
		`"hostLink":"bthaaaaaaaaaaaa","releasedBoot":5000000000,"bootID":"boot-1","instanceID":"i-1"}`
	want := Cooling{
		Version: Version, Addr: netip.MustParseAddr("10.0.0.7"), Key: Key{Network: "berth", ContainerID: "c1", IfName: "eth0"},
		HostLink: "bthaaaaaaaaaaaa", ReleasedBoot: 5 * time.Second, BootID: "boot-1", InstanceID: "i-1",
	}
	got, err := DecodeCooling([]byte(stored))
	if err != nil || got != want {
		t.Errorf("DecodeCooling() = %+v, %v", got, err)
	}
}

// Records of every release can be read, and new records have every field that earlier releases read.
func TestStoredRecords(t *testing.T) {
	samples.Check(t,
		samples.Format{Files: recordPrefix + "*" + recordSuffix, Type: reflect.TypeFor[Record](), Again: again(DecodeRecord)},
		samples.Format{Files: coolingPrefix + "*" + recordSuffix, Type: reflect.TypeFor[Cooling](), Again: again(DecodeCooling)},
		samples.Format{Files: freedFile, Type: reflect.TypeFor[freedContent](), Again: again(decode[freedContent])},
	)
}

func again[T interface{ validate() error }](read func([]byte) (T, error)) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) {
		v, err := read(data)
		if err != nil {
			return nil, err
		}
		return encode(v)
	}
}

// An earlier release would quarantine a record with a state that it does not know, so every state that is
// written has a sample.
func TestEveryStateHasASample(t *testing.T) {
	var all strings.Builder
	files, err := filepath.Glob(filepath.Join(samples.Folder, "*", recordPrefix+"*"))
	must(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		must(t, err)
		all.Write(data)
	}
	for _, s := range []State{Pending, Ready, Releasing} {
		if !strings.Contains(all.String(), `"state":"`+string(s)+`"`) {
			t.Errorf("no sample has state %s", s)
		}
	}
}
