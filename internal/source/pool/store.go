package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/statefile"
)

// file keeps the node's blocks in a directory, as JSON, replaced atomically.
type file struct{ dir string }

const blocksFile = "blocks.json"

// fileContent is what the API server last confirmed.
type fileContent struct {
	Node   string      `json:"node"`
	Blocks []fileBlock `json:"blocks"`
}

type fileBlock struct {
	Name     string       `json:"name"`
	Pool     string       `json:"pool"`
	UID      types.UID    `json:"uid"`
	IPv4     netip.Prefix `json:"ipv4,omitzero"`
	IPv6     netip.Prefix `json:"ipv6,omitzero"`
	Draining bool         `json:"draining,omitempty"`
	Withheld []fileRange  `json:"withheld,omitempty"`
}

type fileRange struct {
	CIDR  netip.Prefix `json:"cidr"`
	Owner string       `json:"owner"`
}

// sameOnFile reports whether two blocks are the same as far as the file goes.
func sameOnFile(x, y blockFacts) bool {
	return x.same(y) && x.draining == y.draining && slices.Equal(x.withheld, y.withheld)
}

// load reads the file. ok is false if there is none; an invalid file is an error.
func (f file) load() (node string, blocks []blockFacts, ok bool, err error) {
	var c fileContent
	if ok, err = statefile.LoadJSON(f.dir, blocksFile, &c); !ok {
		return "", nil, false, err
	}
	for _, b := range c.Blocks {
		facts, err := blockFacts{name: b.Name, pool: b.Pool, uid: b.UID, draining: b.Draining}.with(b.IPv4, b.IPv6)
		if b.Name == "" || b.Pool == "" {
			err = errors.New("name, pool: expected names")
		}
		if err != nil {
			return "", nil, false, fmt.Errorf("read %s: block %q of pool %q: %w", blocksFile, b.Name, b.Pool, err)
		}
		for _, w := range b.Withheld {
			facts.withheld = append(facts.withheld, withheldRange{w.CIDR, w.Owner})
		}
		blocks = append(blocks, facts)
	}
	return c.Node, blocks, true, nil
}

// save replaces the file.
func (f file) save(node string, blocks []blockFacts) error {
	c := fileContent{Node: node, Blocks: []fileBlock{}}
	for _, b := range blocks {
		fb := fileBlock{Name: b.name, Pool: b.pool, UID: b.uid, Draining: b.draining}
		for _, p := range b.prefixes() {
			if p.Addr().Is4() {
				fb.IPv4 = p
			} else {
				fb.IPv6 = p
			}
		}
		for _, w := range b.withheld {
			fb.Withheld = append(fb.Withheld, fileRange{w.Prefix, w.owner})
		}
		c.Blocks = append(c.Blocks, fb)
	}
	return statefile.ReplaceJSON(f.dir, blocksFile, c)
}
