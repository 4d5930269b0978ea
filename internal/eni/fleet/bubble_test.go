package fleet

import "time"

// pass lets virtual time go on: the tests of this package run in synctest bubbles.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble, where time passes once nothing else can happen
}
