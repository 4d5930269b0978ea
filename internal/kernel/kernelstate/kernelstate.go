// Package kernelstate writes the network state of the namespace that it runs in as
// text: everybody's links, addresses, routes, rules, neighbours and packet filters,
// as the programs ip, nft and sysctl would. It asks the kernel itself, since an image
// for nodes has none of these programs, and changes nothing.
//
//	route.go    links, addresses, routes, rules, neighbours
//	nft.go      nftables
//	iptables.go which iptables tables are loaded
//	sysctl.go   settings
package kernelstate

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Part is one kind of state.
type Part struct {
	Name  string // of a file
	Write func(io.Writer) error
}

// Parts are all kinds. What a part has written before it fails is worth keeping.
func Parts() []Part {
	return []Part{
		{"links.txt", Links}, {"routes.txt", Routes}, {"rules.txt", Rules}, {"neighbours.txt", Neighbours},
		{"nftables.txt", Nftables}, {"iptables.txt", Iptables}, {"sysctls.txt", Sysctls},
	}
}

// dumpTries is how often a dump is repeated that a change interrupted
// (NLM_F_DUMP_INTR). What the last one has is shown all the same.
const dumpTries = 5

func dump[T any](list func() ([]T, error)) ([]T, error) {
	for range dumpTries - 1 {
		if all, err := list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	all, err := list()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return all, fmt.Errorf("changes while it was read: %w", err)
	}
	return all, err
}

// families are those of routes, with the name that ip gives them.
var families = []struct {
	name   string
	family int
}{{"IPv4", unix.AF_INET}, {"IPv6", unix.AF_INET6}}

// words are what is said of one thing, on one line.
type words []string

// add adds a name and a value unless the value is a zero one.
func (w *words) add(name string, v any) {
	switch s := fmt.Sprint(v); s {
	case "", "0", "<nil>", "[]", "false":
	default:
		*w = append(*w, name, s)
	}
}

func (w words) line(out io.Writer) error {
	_, err := fmt.Fprintln(out, strings.Join(w, " "))
	return err
}
