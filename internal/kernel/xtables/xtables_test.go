package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
)

var mine = Select{
	Chain:   func(name string) bool { return strings.HasPrefix(name, "MINE-") },
	Comment: func(text string) bool { return strings.HasPrefix(text, "mine") },
}

// saved is a table as iptables-legacy-save prints it. Lines that begin with a dash are to be removed.
const saved = `*nat
:PREROUTING ACCEPT [7:420]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [9:540]
:KEEP - [0:0]
-:MINE-0 - [0:0]
-:MINE-1 - [0:0]
:NEXT - [0:0]
[1:60] -A PREROUTING -p tcp -m comment --comment "of others" -j KEEP
-[2:120] -A PREROUTING -i eni+ -m comment --comment "mine, outbound" -j MINE-0
-[3:180] -A PREROUTING -j MINE-1
[4:240] -A PREROUTING -p udp -g NEXT
[5:300] -A POSTROUTING -p sctp -m comment --comment "counts, and goes on"
-[6:360] -A POSTROUTING -m comment --comment mine -j RETURN
[7:420] -A POSTROUTING -p udp -j KEEP
-[10:600] -A KEEP -p tcp -m comment --comment "mine, first of a chain" -j RETURN
[11:660] -A KEEP -p tcp -j NEXT
-[8:480] -A MINE-0 -p tcp -j RETURN
-[9:540] -A MINE-0 -j KEEP
-[12:720] -A MINE-1 -j RETURN
[13:780] -A NEXT -p udp -j RETURN
COMMIT
`

// lines returns the lines of saved, with or without what is to be removed.
func lines(all bool) (list []string) {
	for l := range strings.Lines(saved) {
		l = strings.TrimSpace(l)
		rest, gone := strings.CutPrefix(l, "-")
		if !gone || all {
			list = append(list, rest)
		}
	}
	return list
}

// Rules with a comment, chains, and rules that jump to them are removed, and all else stays as it is, with its counters.
func TestRemove(t *testing.T) {
	for name, family := range map[string]int{"iptables-legacy": unix.AF_INET, "ip6tables-legacy": unix.AF_INET6} {
		t.Run(name, func(t *testing.T) {
			path := nstest.New(t, nstest.Unique("xt"))
			run := func(input string, program string, args ...string) (out []string) {
				t.Helper()
				if err := ns.Do(path, func() error {
					cmd := exec.Command(program, args...)
					cmd.Stdin = strings.NewReader(input)
					got, err := cmd.CombinedOutput()
					for _, l := range bytes.Split(bytes.TrimSpace(got), []byte("\n")) {
						if !bytes.HasPrefix(l, []byte("#")) {
							out = append(out, string(bytes.TrimSpace(l)))
						}
					}
					return err
				}); err != nil {
					t.Fatalf("%s: %v: %s", program, err, out)
				}
				return out
			}
			remove := func(table string) (removed []string) {
				t.Helper()
				if err := ns.Do(path, func() (err error) {
					removed, err = Remove(t.Context(), family, table, mine)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				return removed
			}
			wantNone := func(table string) {
				t.Helper()
				if got := remove(table); got != nil {
					t.Errorf("removed %v of table %s, want nothing", got, table)
				}
			}
			wantNone("nat") // which does not exist
			run(strings.Join(lines(true), "\n")+"\n", name+"-restore", "-c")
			want := []string{
				"chain MINE-0", "chain MINE-1", "a rule of chain PREROUTING", "a rule of chain PREROUTING", "a rule of chain POSTROUTING", "a rule of chain KEEP",
			}
			release, err := lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := ns.Do(path, func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 3*lockRetry)
				defer cancel()
				removed, err := Remove(ctx, family, "nat", mine)
				if len(removed) > 0 || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another program holds the lock of iptables-legacy, /run/xtables.lock") {
					return fmt.Errorf("removed %v while another program held the lock, error: %w", removed, err)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			release()
			got := remove("nat")
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("removed %q, want %q", got, want)
			}
			after := run("", name+"-save", "-c", "-t", "nat")
			if want := lines(false); !slices.Equal(after, want) {
				t.Errorf("left:\n%s\nwant:\n%s", strings.Join(after, "\n"), strings.Join(want, "\n"))
			}
			wantNone("nat")
			wantNone("mangle")
			run("", name, "-t", "nat", "-A", "NEXT", "-j", "ACCEPT") // the table takes further changes
		})
	}
}

// A table that is not one is refused.
func TestDamagedTables(t *testing.T) {
	good := make([]byte, 112+40)
	good[88], good[90] = 112, 152
	good[112] = 40
	for name, change := range map[string]func(b []byte) []byte{
		"short":             func(b []byte) []byte { return b[:100] },
		"target in header":  func(b []byte) []byte { b[88] = 4; return b },
		"no progress":       func(b []byte) []byte { b[90] = 0; return b },
		"longer than table": func(b []byte) []byte { b[91] = 9; return b },
		"target of 2 bytes": func(b []byte) []byte { b[112] = 2; return b },
		"jump into an entry": func(b []byte) []byte {
			b[144] = 8
			return b
		},
	} {
		table := table{layout: layout4, hooks: 1, entries: change(slices.Clone(good))}
		if _, _, _, err := table.without(mine); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, kept, removed, err := (table{layout: layout4, hooks: 1, entries: good}).without(mine); err != nil || len(kept) != 1 || removed != nil {
		t.Errorf("a table of one entry: kept %v, removed %v, %v", kept, removed, err)
	}
}
