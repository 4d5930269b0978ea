//go:build race

package harness

// raceFlags make the daemons under test report data races when the test does.
var raceFlags = []string{"-race"}
