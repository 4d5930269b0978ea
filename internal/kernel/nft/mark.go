package nft

import "github.com/google/nftables/expr"

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

// CtMarkBeside is CtMark, behind an address of a family that is loaded.
func CtMarkBeside(family int, mask uint32) Exprs {
	return Join(ctInto(expr.CtKeyMARK, beside(family)), bits(beside(family), Word(mask), Word(0)))
}

// SetMark is meta mark set (meta mark & ~mask) | m. Other bits are other people's.
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
