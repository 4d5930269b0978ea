package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// The tables of iptables-legacy are not part of nftables. They are read by getsockopt, as the iptables program does
// (linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h). Only tables that the kernel lists are
// read, as reading would load another.

// legacyFamily holds the differences between iptables and ip6tables.
type legacyFamily struct {
	command      string
	names        string // lists the loaded tables
	family       int
	level        int
	linksOffset  int // of iniface in struct ipt_entry, ip6t_entry; before it are addresses and their masks
	flagsOffset  int // of flags
	leaps        byte
	targetOffset int // of target_offset
	size         int
}

var legacyFamilies = []legacyFamily{
	{"iptables-legacy", "ip_tables_names", unix.AF_INET, unix.SOL_IP, 16, 82, 0x02, 88, 112},
	{"ip6tables-legacy", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 64, 131, 0x04, 140, 168},
}

const (
	soGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	soGetEntries = 65 // IPT_SO_GET_ENTRIES, IP6T_SO_GET_ENTRIES

	tableNameLen  = 32 // XT_TABLE_MAXNAMELEN
	infoLen       = 84 // struct ipt_getinfo
	infoHookEntry = 36 // offset of hook_entry[5] in it
	infoUnderflow = 56 // offset of underflow[5]
	infoSize      = 80 // offset of size in it
	entriesHead   = 40 // offset of entrytable in struct ipt_get_entries
	extensionHead = 32 // sizeof struct xt_entry_target and xt_entry_match: size, name, revision
	hookForward   = unix.NF_INET_FORWARD

	protocolAfter    = 64   // offset of proto from iniface: two link names and their masks
	invertedComesBy  = 0x01 // IPT_INV_VIA_IN, IP6T_INV_VIA_IN
	invertedLeavesBy = 0x02 // IPT_INV_VIA_OUT, IP6T_INV_VIA_OUT

	forwardName  = "FORWARD"
	headTarget   = "ERROR"
	rejectTarget = "REJECT"
	commentMatch = "comment"
)

// A standard target holds the offset of a chain, or one less than the negative of a verdict (linux/netfilter/x_tables.h).
var legacyActions = map[int32]action{-1: refuses, -2: accepts, -5: returns}

func (k *kernel) legacyForwardDrops() ([]Finding, error) {
	var found []Finding
	err := rtnl.InNetns(k.ns, func() error {
		for _, f := range legacyFamilies {
			r, err := f.forwardDrops()
			for tries := 0; errors.Is(err, unix.EAGAIN) && tries < 5; tries++ {
				r, err = f.forwardDrops() // the table changed between the two calls
			}
			if err != nil {
				return fmt.Errorf("read the chain FORWARD of %s: %w", f.command, err)
			}
			if r != nil {
				found = append(found, iptablesFinding(f.command+" table filter, chain FORWARD", f.command, *r))
			}
		}
		return nil
	})
	return found, err
}

// forwardDrops reads the chain. Its policy is its last rule, at the offset "underflow".
func (f legacyFamily) forwardDrops() (*refusal, error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a kernel without iptables-legacy
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(strings.Fields(string(names)), "filter") {
		return nil, nil
	}
	fd, err := unix.Socket(f.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()

	info := make([]byte, infoLen)
	copy(info, "filter")
	if err := getsockopt(fd, f.level, soGetInfo, info); err != nil {
		return nil, err
	}
	entries := make([]byte, entriesHead+int(binary.NativeEndian.Uint32(info[infoSize:])))
	copy(entries, "filter")
	copy(entries[tableNameLen:], info[infoSize:infoSize+4])
	if err := getsockopt(fd, f.level, soGetEntries, entries); err != nil {
		return nil, err
	}
	chains, err := f.chains(entries[entriesHead:], int(binary.NativeEndian.Uint32(info[infoHookEntry+4*hookForward:])),
		int(binary.NativeEndian.Uint32(info[infoUnderflow+4*hookForward:])))
	if err != nil {
		return nil, err
	}
	return chains.refusal(forwardName, []int{f.family})
}

// chains parses all entries of a table, given the offsets of FORWARD's first and last one. The last entry of a chain
// matches all packets, and the next chain follows.
func (f legacyFamily) chains(entries []byte, first, policy int) (filterChains, error) {
	var rules []filterRule
	names, from := map[int]string{first: forwardName}, map[string]int{}
	for at := 0; at < len(entries); {
		if name := names[at]; name != "" {
			from[name] = len(rules)
		}
		r, length, err := f.rule(entries, at)
		if err != nil {
			return nil, err
		}
		if r.policy = at == policy; r.head {
			names[at+length] = r.chain
		}
		rules = append(rules, r.filterRule)
		at += length
	}
	for i, r := range rules {
		if r.does == jumps || r.does == leaps {
			at, _ := strconv.Atoi(r.chain)
			rules[i].chain = names[at]
		}
	}
	return func(chain string) ([]filterRule, error) {
		i, ok := from[chain]
		if !ok {
			return nil, fmt.Errorf("there is no chain %q", chain)
		}
		return rules[i:], nil
	}, nil
}

// legacyRule is an entry. An entry with a chain's name precedes those of the chain.
type legacyRule struct {
	filterRule
	head bool
}

// rule parses the entry at an offset, and returns its length.
func (f legacyFamily) rule(entries []byte, at int) (r legacyRule, length int, err error) {
	if at+f.size > len(entries) {
		return r, 0, fmt.Errorf("entry at %d of %d bytes", at, len(entries))
	}
	e := entries[at:]
	target, length := int(binary.NativeEndian.Uint16(e[f.targetOffset:])), int(binary.NativeEndian.Uint16(e[f.targetOffset+2:]))
	if target < f.size || length < target+extensionHead+4 || length > len(e) {
		return r, 0, fmt.Errorf("entry at %d of %d bytes has its target at %d and the length %d", at, len(entries), target, length)
	}
	r.conditions = f.conditions(e[:target])
	data := binary.NativeEndian.Uint32(e[target+extensionHead:])
	switch name := extensionName(e[target:]); {
	case name == rejectTarget:
		r.does = refuses
	case name == headTarget:
		r.head, r.chain = true, cString(e[target+extensionHead:length])
	case name != "":
	case int32(data) < 0:
		r.does = legacyActions[int32(data)]
	case int(data) == at+length: // an entry without a target
	case e[f.flagsOffset]&f.leaps != 0:
		r.does, r.chain = leaps, strconv.Itoa(int(data))
	default:
		r.does, r.chain = jumps, strconv.Itoa(int(data))
	}
	return r, length, nil
}

// conditions returns the conditions of an entry without its target.
func (f legacyFamily) conditions(e []byte) (list []condition) {
	links, inverted := f.linksOffset, e[f.flagsOffset+1]
	for i, about := range []subject{comesBy, leavesBy} {
		name, mask := e[links+i*unix.IFNAMSIZ:][:unix.IFNAMSIZ], e[links+(2+i)*unix.IFNAMSIZ:][:unix.IFNAMSIZ]
		length := bytes.Count(mask, []byte{0xff})
		if length == 0 {
			continue
		}
		link, _, whole := bytes.Cut(name[:length], []byte{0})
		list = append(list, condition{about: about, link: string(link), begins: !whole, not: inverted&[]byte{invertedComesBy, invertedLeavesBy}[i] != 0})
	}
	masks := e[links/2 : links]
	protocol := binary.NativeEndian.Uint16(e[links+protocolAfter:])
	if bytes.Count(masks, []byte{0}) != len(masks) || protocol != 0 || e[f.flagsOffset]&^f.leaps != 0 || inverted&^(invertedComesBy|invertedLeavesBy) != 0 {
		list = append(list, condition{})
	}
	for m := e[f.size:]; len(m) >= extensionHead; {
		if extensionName(m) != commentMatch {
			return append(list, condition{})
		}
		m = m[min(len(m), max(extensionHead, int(binary.NativeEndian.Uint16(m)))):]
	}
	return list
}

// extensionName is the name of a target or match.
func extensionName(b []byte) string {
	return cString(b[2 : extensionHead-1])
}

func cString(b []byte) string {
	name, _, _ := bytes.Cut(b, []byte{0})
	return string(name)
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
