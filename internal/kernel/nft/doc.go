// Package nft has the expressions of nftables rules in the words of nft(8): what a rule
// matches and what it does, as functions of values. A rule is the concatenation of its
// parts (Join), a Table is the desired content of one. It knows no table of Berth's.
//
// Parts that load a value leave it in Register, and those that compare or look up take it
// from there: Join(Source(family), In(set)) is ip saddr @set. A family is unix.AF_INET or
// unix.AF_INET6.
package nft

import (
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// Exprs are the expressions of a rule, or of a part of one.
type Exprs = []expr.Any

// Register is where values are loaded (linux/netfilter/nf_tables.h, NFT_REG_1).
const Register = 1

// Join concatenates the parts of a rule.
func Join(parts ...Exprs) Exprs { return slices.Concat(parts...) }

// Word is a number as the kernel has marks, states and indexes: 32 bits in the machine's own
// order of bytes.
func Word(v uint32) []byte { return binaryutil.NativeEndian.PutUint32(v) }
