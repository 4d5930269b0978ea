package main

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"testing"
	"time"
)

// record is a record of acct(2), in whole seconds.
type record struct {
	pid, ppid   uint32
	start, took int
	cpu         uint16 // comp_t
	comm        string
	flag        byte
}

func (r record) bytes() []byte {
	b := make([]byte, acctSize)
	b[0], b[1] = r.flag, acctVersion
	order := binary.NativeEndian
	order.PutUint32(b[16:], r.pid)
	order.PutUint32(b[20:], r.ppid)
	order.PutUint32(b[24:], uint32(r.start))
	order.PutUint32(b[28:], math.Float32bits(float32(r.took*100)))
	order.PutUint16(b[32:], r.cpu)
	copy(b[48:], r.comm)
	return b
}

func TestReadProcesses(t *testing.T) {
	other := record{pid: 9}.bytes()
	other[1] = 2
	data := append(other, record{pid: 7, ppid: 3, start: 1000, took: 5, cpu: 1<<13 | 2, comm: "kube-apiserver", flag: acctForked}.bytes()...)
	got := readProcesses(append(data, make([]byte, 20)...))
	want := process{pid: 7, ppid: 3, started: time.Unix(1000, 0), ended: time.Unix(1005, 0), cpu: 160 * time.Millisecond, comm: "kube-apiserver", forked: true}
	if len(got) != 1 || got[0] != want {
		t.Errorf("readProcesses() = %+v, want %+v, without records of other versions and incomplete ones", got, want)
	}
}

func TestAttribute(t *testing.T) {
	roots := []usage{{Package: "a", PID: 10, Started: time.Unix(1000, 0)}, {Package: "b", PID: 20, Started: time.Unix(1000, 0)}, {Package: "c", PID: 10, Started: time.Unix(2000, 0)}}
	for _, tt := range []struct {
		name    string
		records []record // in the order of their ends
		want    [4]map[string]int
	}{
		{"descendants, without the root and forks", []record{
			{pid: 13, ppid: 12, start: 1002, took: 1, comm: "etcd"},
			{pid: 12, ppid: 11, start: 1001, took: 3, comm: "berthd"},
			{pid: 14, ppid: 11, start: 1001, took: 3, comm: "sh", flag: acctForked},
			{pid: 21, ppid: 20, start: 1001, took: 3, comm: "qemu-system-x86"},
			{pid: 11, ppid: 10, start: 1000, took: 5, comm: "a.test"},
			{pid: 10, ppid: 2, start: 1000, took: 6, comm: "testrun"},
			{pid: 20, ppid: 2, start: 1000, took: 6, comm: "testrun"},
		}, [4]map[string]int{{"etcd": 1, "berthd": 1, other: 1}, {"qemu": 1}, nil, nil}},
		{"reused PID", []record{
			{pid: 11, ppid: 10, start: 1001, took: 1, comm: "berthd"},
			{pid: 10, ppid: 2, start: 1000, took: 6, comm: "testrun"},
			{pid: 11, ppid: 20, start: 1100, took: 1, comm: "etcd"},
			{pid: 20, ppid: 2, start: 1000, took: 200, comm: "testrun"},
			{pid: 11, ppid: 10, start: 2000, took: 1, comm: "berth-operator"},
			{pid: 10, ppid: 2, start: 2000, took: 9, comm: "testrun"},
		}, [4]map[string]int{{"berthd": 1}, {"etcd": 1}, {"berth-operator": 1}, nil}},
		{"ending parent with a reused PID", []record{
			{pid: 11, ppid: 10, start: 1001, took: 2, comm: "sh"},
			{pid: 12, ppid: 11, start: 1001, took: 2, comm: "berthd"},
			{pid: 10, ppid: 2, start: 1000, took: 6, comm: "testrun"},
			{pid: 11, ppid: 20, start: 1100, took: 1, comm: "etcd"},
			{pid: 20, ppid: 2, start: 1000, took: 200, comm: "testrun"},
		}, [4]map[string]int{{"berthd": 1, other: 1}, {"etcd": 1}, nil, nil}},
		{"no known ancestor", []record{
			{pid: 31, ppid: 30, start: 1000, took: 1, comm: "etcd"},
			{pid: 40, ppid: 41, start: 1000, took: 1, comm: "berthd"},
			{pid: 41, ppid: 40, start: 1000, took: 1, comm: "berthd"},
			{pid: 30, ppid: 1, start: 1000, took: 2, comm: "bash"},
		}, [4]map[string]int{nil, nil, nil, {"etcd": 1, "berthd": 2, other: 1}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var data []byte
			for _, r := range tt.records {
				data = append(data, r.bytes()...)
			}
			byRoot, none := attribute(readProcesses(data), roots)
			for i, got := range append(byRoot, none) {
				if !maps.Equal(got.programs, tt.want[i]) || i < len(roots) && got.complete != slices.ContainsFunc(tt.records, func(r record) bool { return int(r.pid) == roots[i].PID && int64(r.start) == roots[i].Started.Unix() }) {
					t.Errorf("programs of root %d = %+v, want %v", i, got, tt.want[i])
				}
			}
		})
	}
}
