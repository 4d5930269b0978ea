//go:build !race

package harness

const race = false

// RaceMemory is 1 without the race detector.
const RaceMemory = 1
