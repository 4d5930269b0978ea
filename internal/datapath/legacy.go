package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/rtnl"
)

// iptables-legacy keeps its tables outside nftables. They are read as the
// iptables program does, by getsockopt (linux/netfilter_ipv4/ip_tables.h and
// linux/netfilter_ipv6/ip6_tables.h). Only a table that the kernel lists as
// loaded is asked for: asking would load it.

// legacyFamily is what differs between iptables and ip6tables.
type legacyFamily struct {
	command      string
	names        string // file that lists the loaded tables
	domain       int
	level        int
	targetOffset int // of target_offset in struct ipt_entry, ip6t_entry
}

var legacyFamilies = []legacyFamily{
	{"iptables-legacy", "ip_tables_names", unix.AF_INET, unix.SOL_IP, 88},
	{"ip6tables-legacy", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 140},
}

const (
	soGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES

	tableNameLen  = 32 // XT_TABLE_MAXNAMELEN
	infoLen       = 84 // struct ipt_getinfo
	infoUnderflow = 56 // offset of underflow[5] in it
	infoSize      = 80 // offset of size in it
	entriesHead   = 40 // offset of entrytable in struct ipt_get_entries
	targetHead    = 32 // sizeof struct xt_entry_target; the verdict follows
	hookForward   = unix.NF_INET_FORWARD
	verdictDrop   = -1 // a standard target holds -verdict-1, and NF_DROP is 0
)

func (k *kernel) legacyForwardDrops() ([]Finding, error) {
	var found []Finding
	err := rtnl.InNetns(k.ns, func() error {
		for _, f := range legacyFamilies {
			drops, err := f.forwardDrops()
			for tries := 0; errors.Is(err, unix.EAGAIN) && tries < 5; tries++ {
				drops, err = f.forwardDrops() // the table changed between the two calls
			}
			if err != nil {
				return fmt.Errorf("read the FORWARD policy of %s: %w", f.command, err)
			}
			if drops {
				found = append(found, finding(f.command+" table filter, chain FORWARD", f.command+" -P FORWARD ACCEPT"))
			}
		}
		return nil
	})
	return found, err
}

// forwardDrops reads the policy: the last rule of the chain, at the offset
// that the kernel calls its underflow, with the verdict as its target.
func (f legacyFamily) forwardDrops() (bool, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // a kernel without iptables-legacy
	}
	if err != nil {
		return false, err
	}
	if !slices.Contains(strings.Fields(string(names)), "filter") {
		return false, nil
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false, fmt.Errorf("open raw socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()

	info := make([]byte, infoLen)
	copy(info, "filter")
	if err := getsockopt(fd, f.level, soGetInfo, info); err != nil {
		return false, err
	}
	entries := make([]byte, entriesHead+int(binary.NativeEndian.Uint32(info[infoSize:])))
	copy(entries, "filter")
	copy(entries[tableNameLen:], info[infoSize:infoSize+4])
	if err := getsockopt(fd, f.level, soGetEntries, entries); err != nil {
		return false, err
	}
	policy := binary.NativeEndian.Uint32(info[infoUnderflow+4*hookForward:])
	return f.isDrop(entries[entriesHead:], int(policy))
}

// isDrop reads the verdict of the policy rule at an offset of the entries.
func (f legacyFamily) isDrop(entries []byte, at int) (bool, error) {
	if at < 0 || at+f.targetOffset+2 > len(entries) {
		return false, fmt.Errorf("policy at %d of %d bytes", at, len(entries))
	}
	target := at + int(binary.NativeEndian.Uint16(entries[at+f.targetOffset:]))
	if target+targetHead+4 > len(entries) {
		return false, fmt.Errorf("policy target at %d of %d bytes", target, len(entries))
	}
	if name, _, _ := bytes.Cut(entries[target+2:target+targetHead-1], []byte{0}); len(name) != 0 {
		return false, fmt.Errorf("policy target is %q, not a standard one", name)
	}
	return int32(binary.NativeEndian.Uint32(entries[target+targetHead:])) == verdictDrop, nil
}

func getsockopt(fd, level, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
