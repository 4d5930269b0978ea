//go:build !race

package harness

var raceFlags []string
