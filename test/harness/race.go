//go:build race

package harness

// race reports whether the daemons under test have the race detector.
const race = true

// RaceMemory is the factor by which a daemon's memory may grow with the race detector (Go
// documentation, "Data Race Detector": five to ten times).
const RaceMemory = 10
