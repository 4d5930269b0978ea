package nft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Count is counter.
func Count() Exprs { return Exprs{&expr.Counter{}} }

// CountAs is counter name NAME.
func CountAs(name string) Exprs {
	return Exprs{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: name}}
}

// LogTo is log prefix PREFIX group N snaplen LENGTH.
func LogTo(group uint16, prefix string, length uint32) Exprs {
	return Exprs{&expr.Log{
		Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
		Group: group, Data: []byte(prefix), Snaplen: length,
	}}
}

// Accept is accept.
func Accept() Exprs { return Exprs{&expr.Verdict{Kind: expr.VerdictAccept}} }

// Drop is drop.
func Drop() Exprs { return Exprs{&expr.Verdict{Kind: expr.VerdictDrop}} }

// GoTo is goto CHAIN.
func GoTo(chain string) Exprs {
	return Exprs{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// Jump is jump CHAIN.
func Jump(chain string) Exprs {
	return Exprs{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// Return is return.
func Return() Exprs { return Exprs{&expr.Verdict{Kind: expr.VerdictReturn}} }

// Notrack is notrack.
func Notrack() Exprs { return Exprs{&expr.Notrack{}} }

// Reset is reject with tcp reset.
func Reset() Exprs { return Exprs{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

// Reject is reject with icmpx, with a code of either family (unix.NFT_REJECT_ICMPX_NO_ROUTE …).
func Reject(code uint8) Exprs {
	return Exprs{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: code}}
}

// Masquerade is masquerade.
func Masquerade() Exprs { return Exprs{&expr.Masq{}} }

// MasqueradeFullyRandom is masquerade fully-random.
func MasqueradeFullyRandom() Exprs { return Exprs{&expr.Masq{FullyRandom: true}} }

// SNATTo is snat to ADDRESS fully-random.
func SNATTo(a netip.Addr) Exprs { return snatTo(a, true) }

// SNATToSamePorts is snat to ADDRESS, which keeps ports if possible.
func SNATToSamePorts(a netip.Addr) Exprs { return snatTo(a, false) }

func snatTo(a netip.Addr, random bool) Exprs {
	return Exprs{
		&expr.Immediate{Register: Register, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: protoOf(rtnl.FamilyOf(a)), RegAddrMin: Register, FullyRandom: random},
	}
}

// Marked is meta mark & m == m.
func Marked(m uint32) Exprs { return Join(Meta(expr.MetaKeyMARK), Mask(Word(m)...), Is(Word(m)...)) }

// NotMarked is meta mark & m != m.
func NotMarked(m uint32) Exprs {
	return Join(Meta(expr.MetaKeyMARK), Mask(Word(m)...), IsNot(Word(m)...))
}

// CtMarked is ct mark & m == m.
func CtMarked(m uint32) Exprs { return Join(Ct(expr.CtKeyMARK), Mask(Word(m)...), Is(Word(m)...)) }

// CtMark loads ct mark & mask.
func CtMark(mask uint32) Exprs { return Join(Ct(expr.CtKeyMARK), Mask(Word(mask)...)) }

// CtMarkBeside is like CtMark, but loads into the register after an address of a family.
func CtMarkBeside(family int, mask uint32) Exprs {
	return Join(ctInto(expr.CtKeyMARK, beside(family)), bits(beside(family), Word(mask), Word(0)))
}

// SetMark is meta mark set (meta mark & ~mask) | m. It keeps other bits.
func SetMark(m, mask uint32) Exprs {
	return Join(Meta(expr.MetaKeyMARK), replaceBits(m, mask), storeMark())
}

// SetWholeMark is meta mark set m.
func SetWholeMark(m uint32) Exprs {
	return Join(Exprs{&expr.Immediate{Register: Register, Data: Word(m)}}, storeMark())
}

func storeMark() Exprs {
	return Exprs{&expr.Meta{Key: expr.MetaKeyMARK, Register: Register, SourceRegister: true}}
}

// SetCtMark is ct mark set (ct mark & ~mask) | m.
func SetCtMark(m, mask uint32) Exprs {
	return Join(Ct(expr.CtKeyMARK), replaceBits(m, mask),
		Exprs{&expr.Ct{Key: expr.CtKeyMARK, Register: Register, SourceRegister: true}})
}

func replaceBits(m, mask uint32) Exprs { return bits(Register, Word(^mask), Word(m)) }
