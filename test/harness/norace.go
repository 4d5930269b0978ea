//go:build !race

package harness

var raceFlags []string

// RaceMemory is 1 without the race detector.
const RaceMemory = 1
