package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// programs are those with a column for starts in the summary. The kernel keeps 15 characters of a name.
var programs = []struct{ name, comm string }{
	{"etcd", "etcd"},
	{"kube-apiserver", "kube-apiserver"},
	{"berthd", "berthd"},
	{"berth-operator", "berth-operator"},
	{"qemu", "qemu-system-x86"},
}

// other is the column of all other programs.
const other = "other"

// builders are programs that build programs. Their usage depends on the content of Go's cache, so it is not attributed
// to any package.
var builders = []string{"go", "compile", "link", "asm", "cgo", "vet", "gcc", "cc1", "as", "collect2", "ld"}

// process is a record of a process that ended (acct(5), version 3).
type process struct {
	pid, ppid      uint32 // in the accounted namespace; ppid is the parent at the process's end
	started, ended time.Time
	cpu            time.Duration
	comm           string
	forked         bool // forked without starting a program
}

const (
	acctSize    = 64
	acctVersion = 3
	acctForked  = 1                     // AFORK
	acctTick    = 10 * time.Millisecond // AHZ
	// acctError is the maximum error of the kernel's times, as the start is in whole seconds.
	acctError = 2 * time.Second
)

// readProcesses reads a file of acct(2), and skips records of other versions than 3.
func readProcesses(data []byte) (all []process) {
	for ; len(data) >= acctSize; data = data[acctSize:] {
		if data[1]&0x0f != acctVersion {
			continue
		}
		order := binary.NativeEndian
		started := time.Unix(int64(order.Uint32(data[24:])), 0)
		lived := math.Float32frombits(order.Uint32(data[28:]))
		comm, _, _ := bytes.Cut(data[48:64], []byte{0})
		all = append(all, process{
			pid: order.Uint32(data[16:]), ppid: order.Uint32(data[20:]),
			started: started, ended: started.Add(time.Duration(lived) * acctTick),
			cpu:  time.Duration(compT(order.Uint16(data[32:]))+compT(order.Uint16(data[34:]))) * acctTick,
			comm: string(comm), forked: data[0]&acctForked != 0,
		})
	}
	return all
}

// compT decodes the kernel's comp_t: 13 bits, and an exponent of 3 bits to the base 8.
func compT(c uint16) int64 { return int64(c&0x1fff) << (3 * (c >> 13)) }

// started counts started programs.
type started struct {
	programs map[string]int // by column
	builders time.Duration  // CPU time of builders
	complete bool           // the root, which ends last, has a record
}

func (s *started) add(p process) {
	if slices.Contains(builders, p.comm) {
		s.builders += p.cpu
	}
	if p.forked {
		return
	}
	column := other
	for _, known := range programs {
		if known.comm == p.comm {
			column = known.name
		}
	}
	if s.programs == nil {
		s.programs = map[string]int{}
	}
	s.programs[column]++
}

// attribute counts the programs started by each process of roots (usage.PID) and its descendants, in the order of roots,
// and those started by none of them.
func attribute(all []process, roots []usage) (byRoot []started, none started) {
	byPID := map[uint32][]int{} // indices of all
	for i, p := range all {
		byPID[p.pid] = append(byPID[p.pid], i)
	}
	const unknown, pending = -1, -2
	owners := map[int]int{}  // index of roots by index of all
	isRoot := map[int]bool{} // index of all
	var owner func(i int) int
	owner = func(i int) int {
		if known, ok := owners[i]; ok {
			return max(known, unknown) // pending: a process cannot be its own ancestor
		}
		owners[i] = pending
		owners[i] = unknown
		for r, u := range roots {
			if uint32(u.PID) == all[i].pid && all[i].started.Sub(u.Started).Abs() <= acctError {
				owners[i], isRoot[i] = r, true
				return r
			}
		}
		if parent := parentOf(all, i, byPID[all[i].ppid]); parent >= 0 {
			owners[i] = owner(parent)
		}
		return owners[i]
	}
	byRoot = make([]started, len(roots))
	for i, p := range all {
		switch r := owner(i); {
		case isRoot[i]:
			byRoot[r].complete = true
		case r >= 0:
			byRoot[r].add(p)
		default:
			none.add(p)
		}
	}
	return byRoot, none
}

// parentOf is the index of the parent's record among those of its PID, or -1. It is the first one after the child's, since
// a child whose parent has ended gets another parent, unless the PID was reused: then the parent was ending at the same
// time as the child.
func parentOf(all []process, child int, candidates []int) int {
	next, _ := slices.BinarySearch(candidates, child)
	if next < len(candidates) && all[candidates[next]].started.Before(all[child].ended.Add(acctError)) {
		return candidates[next]
	}
	if next > 0 && all[child].ended.Sub(all[candidates[next-1]].ended).Abs() <= acctError {
		return candidates[next-1]
	}
	return -1
}

func (s *started) merge(other started) {
	s.builders += other.builders
	for name, n := range other.programs {
		if s.programs == nil {
			s.programs = map[string]int{}
		}
		s.programs[name] += n
	}
}
