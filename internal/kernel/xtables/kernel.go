package xtables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// family is how the tables of an IP family are reached.
type family struct {
	domain, level int
	names         string // lists the tables that the network namespace has
	layout        layout
}

var families = map[int]family{
	unix.AF_INET:  {unix.AF_INET, unix.IPPROTO_IP, "/proc/thread-self/net/ip_tables_names", layout4},
	unix.AF_INET6: {unix.AF_INET6, unix.IPPROTO_IPV6, "/proc/thread-self/net/ip6_tables_names", layout6},
}

// Socket options.
const (
	getInfo     = 64 // IPT_SO_GET_INFO
	getEntries  = 65 // IPT_SO_GET_ENTRIES
	setReplace  = 64 // IPT_SO_SET_REPLACE
	addCounters = 65 // IPT_SO_SET_ADD_COUNTERS
)

// Sizes of the structures, and of their leading field, the table's name.
const (
	nameSize    = 32
	infoSize    = 84 // ipt_getinfo
	entriesSize = 40 // ipt_get_entries without entries; xt_counters_info without counters
	replaceSize = 96 // ipt_replace without entries
	counterSize = 16 // xt_counters
)

// Remove removes rules and chains from a table of iptables-legacy (ip6tables-legacy) of the calling thread's network
// namespace, in one step, and returns what it removed. It does not create tables that the namespace lacks.
//
// Meanwhile it holds the lock of programs that change such tables. A program that takes no lock (iptables without -w does)
// may lose a change that it makes in the same microseconds, unless it changes the number of entries: then the kernel refuses
// the removal.
func Remove(ctx context.Context, ipFamily int, name string, s Select) (removed []string, err error) {
	f := families[ipFamily]
	names, err := os.ReadFile(f.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	if !slices.Contains(strings.Fields(string(names)), name) {
		return nil, nil
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open a raw socket for iptables-legacy: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if removed, err = f.remove(ctx, fd, name, s); err != nil {
		return nil, fmt.Errorf("table %s of iptables-legacy: %w", name, err)
	}
	return removed, nil
}

// attempts bounds how often a table that a program without the lock changes meanwhile is read again.
const attempts = 10

func (f family) remove(ctx context.Context, fd int, name string, s Select) (removed []string, err error) {
	c, err := f.plan(fd, name, s)
	if !errors.Is(err, unix.EAGAIN) && (err != nil || len(c.removed) == 0) { // the lock is not needed
		return nil, err
	}
	release, err := lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	for range attempts {
		if c, err = f.plan(fd, name, s); err == nil && len(c.removed) > 0 {
			err = f.replace(fd, name, c.next, c.kept)
		}
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return c.removed, nil
}

// change is a change of a table.
type change struct {
	next    table
	kept    []bool // entries of the former table
	removed []string
}

// plan reads a table, and returns the change that removes what is selected.
func (f family) plan(fd int, name string, s Select) (c change, err error) {
	old, number, err := f.read(fd, name)
	if err != nil {
		return c, err
	}
	if c.next, c.kept, c.removed, err = old.without(s); err == nil && len(c.kept) != number {
		err = fmt.Errorf("read %d entries, expected %d", len(c.kept), number)
	}
	return c, err
}

// read reads a table and the number of its entries.
func (f family) read(fd int, name string) (t table, number int, err error) {
	info := make([]byte, infoSize)
	copy(info, name)
	if err := f.get(fd, getInfo, info); err != nil {
		return t, 0, fmt.Errorf("read its size: %w", err)
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(info[nameSize+4*i:]) }
	t = table{layout: f.layout, hooks: word(0)}
	for i := range hooks {
		t.hookEntry[i], t.underflow[i] = word(1+i), word(1+hooks+i)
	}
	size := word(2 + 2*hooks)
	const most = 256 << 20
	if size > most {
		return t, 0, fmt.Errorf("it has %d bytes, expected at most %d", size, most)
	}
	all := make([]byte, entriesSize+int(size))
	copy(all, name)
	binary.NativeEndian.PutUint32(all[nameSize:], size)
	if err := f.get(fd, getEntries, all); err != nil {
		return t, 0, fmt.Errorf("read its entries: %w", err)
	}
	t.entries = all[entriesSize:]
	return t, int(word(1 + 2*hooks)), nil
}

// get reads a socket option into b, which begins with the request.
func (f family) get(fd, option int, b []byte) error {
	size := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(f.level), uintptr(option), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// replace replaces a table, and restores the counters of the entries that are left.
func (f family) replace(fd int, name string, t table, kept []bool) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	counters := make([]byte, counterSize*len(kept)) // the kernel returns those of the former entries
	pin.Pin(&counters[0])
	left := 0
	for _, k := range kept {
		if k {
			left++
		}
	}
	head := make([]byte, replaceSize, replaceSize+len(t.entries))
	copy(head, name)
	for i, v := range slices.Concat([]uint32{t.hooks, uint32(left), uint32(len(t.entries))}, t.hookEntry[:], t.underflow[:], []uint32{uint32(len(kept))}) {
		binary.NativeEndian.PutUint32(head[nameSize+4*i:], v)
	}
	binary.NativeEndian.PutUint64(head[replaceSize-8:], uint64(uintptr(unsafe.Pointer(&counters[0]))))
	if err := unix.SetsockoptString(fd, f.level, setReplace, string(append(head, t.entries...))); err != nil {
		return fmt.Errorf("replace it: %w", err)
	}
	add := bytes.NewBuffer(make([]byte, entriesSize, entriesSize+counterSize*left))
	for i, k := range kept {
		if k {
			add.Write(counters[counterSize*i : counterSize*(i+1)])
		}
	}
	all := add.Bytes()
	copy(all, name)
	binary.NativeEndian.PutUint32(all[nameSize:], uint32(left))
	if err := unix.SetsockoptString(fd, f.level, addCounters, string(all)); err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("restore its counters: %w", err)
	}
	return nil
}
