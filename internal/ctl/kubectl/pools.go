package kubectl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/view"
)

// Pools is the output of `kubectl berth pools -o json`.
type Pools struct {
	Pools  []Pool   `json:"pools"` // by name
	Unread []string `json:"unread"`
}

func newPools(p *program) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "pools [POOL...]",
		Short: "Show address pools, and which nodes have their blocks",
		Long: `Show all address pools, or those named: their free blocks and addresses and their
problems. For named pools, or with -o wide, also the nodes that have their blocks. Exits
with 2 on a problem.`,
		ValidArgsFunction: completion{p}.others(poolsPath),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := p.connect()
			if err != nil {
				return err
			}
			if err := a.reach(cmd.Context()); err != nil {
				return err
			}
			ctx := cmd.Context()
			o := objects{pools: a.pools(ctx), blocks: a.blocks(ctx, ""), requests: a.requests(ctx, "")}
			all := poolsOf(o)
			list := Pools{Pools: all, Unread: append([]string{}, a.unread...)}
			if len(args) > 0 {
				list.Pools = []Pool{}
			}
			for _, name := range args {
				i := slices.IndexFunc(all, func(p Pool) bool { return p.Name == name })
				if i < 0 {
					return missing(a, "AddressPools", fmt.Errorf("there is no AddressPool %q", name))
				}
				list.Pools = append(list.Pools, all[i])
			}
			err = out.show(cmd, list, func(pr *view.Printer, wide bool) { writePools(pr, list, wide, wide || len(args) > 0) })
			if err == nil && (len(a.unread) > 0 || slices.ContainsFunc(list.Pools, func(p Pool) bool { return len(p.Trouble) > 0 })) {
				return errUnwell
			}
			return err
		},
	}
	out.register(cmd)
	return cmd
}

// missing returns err, or why the list that err is about could not be read.
func missing(a *api, what string, err error) error {
	for _, why := range a.unread {
		if strings.HasPrefix(why, what) {
			return fmt.Errorf("could not be read: %s", why)
		}
	}
	return err
}

func writePools(p *view.Printer, list Pools, wide, nodes bool) {
	p.Table(poolGrid(list.Pools, wide), "No AddressPool exists.")
	for _, pool := range list.Pools {
		for _, t := range pool.Trouble {
			p.Printf("\n%s %s\n", view.Toned{Text: "! " + pool.Name + ":", Tone: view.Bad}, t)
		}
	}
	for _, pool := range list.Pools {
		if !nodes {
			break
		}
		g := view.NewGrid("NODE", "BLOCKS", "DRAINING", "REQUESTS")
		for _, n := range pool.Nodes {
			g.Add(n.Name, strconv.Itoa(n.Blocks), strconv.Itoa(n.Draining), strconv.Itoa(n.Requests))
		}
		p.Section("Nodes with blocks of "+pool.Name, g, "No node has a block of this pool.")
	}
	unread(p, list.Unread)
}

func poolGrid(pools []Pool, wide bool) *view.Grid {
	head := []string{"POOL", "BLOCKS", "FREE", "USE", "REQUESTS", "NODES", "READY"}
	if wide {
		head = append(head, "BLOCK SIZE", "ADDRESSES", "SUBNETS")
	}
	g := view.NewGrid(head...)
	for _, p := range pools {
		with := 0
		for _, n := range p.Nodes {
			if n.Blocks > 0 {
				with++
			}
		}
		state := yesNo(p.Ready)
		if p.Reason != "" && len(p.Trouble) > 0 {
			state += " (" + p.Reason + ")"
		}
		row := []string{p.Name, strconv.FormatInt(p.Blocks.Total, 10), strconv.FormatInt(p.Blocks.Free, 10), percent(p.Blocks.Allocated, p.Blocks.Total),
			strconv.Itoa(p.Requests), strconv.Itoa(with), state}
		if wide {
			row = append(row, strconv.Itoa(p.BlockSize), strconv.FormatInt(p.Addresses.Total, 10), strings.Join(p.Subnets, " "))
		}
		g.Add(row...)
		if len(p.Trouble) > 0 {
			g.Tint(6, view.Bad)
		}
	}
	return g
}

// percent returns a part of a whole as text, or "" if the whole is not positive.
func percent[T int | int64](part, whole T) string {
	if whole <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(part)*100/int64(whole), 10) + "%"
}
