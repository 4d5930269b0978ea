package plan

import (
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// places tracks the device indexes of an instance, and how many more ENIs fit.
type places struct {
	most     int   // maximum number of ENIs of the instance
	mostOurs int   // MAX_ENI; 0 means no limit
	first    int   // lowest device index of ENIs for pods
	taken    []int // device indexes, each once
	ours     int   // ENIs that count towards MAX_ENI
	reserved int   // reserved slots, for the trunk
	refused  bool  // State.NoMoreENIs
}

func newPlaces(l cloud.Limits, p ipam.Policy, s State) places {
	b := places{most: l.MaxENIs, mostOurs: p.MaxENI, first: p.FirstInterfaceIndex, taken: make([]int, 0, len(s.ENIs)+1), refused: s.NoMoreENIs}
	if s.lacksTrunk() {
		b.reserved = 1
	}
	for _, e := range s.ENIs {
		if e.Phase == Detached {
			continue
		}
		b.occupy(e.Index)
		if e.Ours {
			b.ours++
		}
	}
	return b
}

// free returns the lowest free device index for pods, if the instance and MAX_ENI have room for one more ENI in
// addition to the reserved ones. Indexes above the maximum number of ENIs are not tried.
func (b *places) free() (int, bool) {
	if b.full(b.reserved) {
		return 0, false
	}
	index := max(1, b.first)
	for slices.Contains(b.taken, index) {
		index++
	}
	return index, index < b.most
}

// full reports whether the instance has no room for another ENI in addition to the given number of reserved ones.
func (b *places) full(reserved int) bool {
	return b.refused || len(b.taken)+reserved >= b.most || b.mostOurs > 0 && b.ours+reserved >= b.mostOurs
}

// beyond reports whether first is above all possible device indexes, so that no ENI can serve pods.
func (b *places) beyond() bool {
	return b.most > 0 && b.first >= b.most
}

func (b *places) take(i int) {
	b.occupy(i)
	b.ours++
}

func (b *places) occupy(i int) {
	if !slices.Contains(b.taken, i) {
		b.taken = append(b.taken, i)
	}
}

// forTrunk returns a device index for the trunk, if the instance and MAX_ENI have room: one below those of ENIs for
// pods, otherwise the highest, because ENIs for pods take the lowest.
func (b *places) forTrunk() (int, bool) {
	if b.full(0) {
		return 0, false
	}
	for i := 1; i < min(b.first, b.most); i++ {
		if !slices.Contains(b.taken, i) {
			return i, true
		}
	}
	for i := b.most - 1; i > 0; i-- {
		if !slices.Contains(b.taken, i) {
			return i, true
		}
	}
	return 0, false
}
