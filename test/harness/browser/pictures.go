package browser

import (
	"image"
	"image/color"
	"time"
)

// patience ends what hangs. It decides nothing else.
const patience = 3 * time.Minute

// Difference returns the share of pixels of two pictures that differ visibly, from 0 to 1. Pictures of different sizes
// differ everywhere. Versions of Chromium draw the edges of letters a little differently.
func Difference(a, b image.Image) float64 {
	if a.Bounds().Size() != b.Bounds().Size() {
		return 1
	}
	size, differ := a.Bounds().Size(), 0
	for y := range size.Y {
		for x := range size.X {
			if visible(a.At(a.Bounds().Min.X+x, a.Bounds().Min.Y+y), b.At(b.Bounds().Min.X+x, b.Bounds().Min.Y+y)) {
				differ++
			}
		}
	}
	return float64(differ) / float64(size.X*size.Y)
}

// visible reports whether a person sees the difference of two colours.
func visible(a, b color.Color) bool {
	const least = 48 << 8
	ar, ag, ab, _ := a.RGBA()
	br, bg, bb, _ := b.RGBA()
	apart := func(x, y uint32) bool { return max(x, y)-min(x, y) > least }
	return apart(ar, br) || apart(ag, bg) || apart(ab, bb)
}
