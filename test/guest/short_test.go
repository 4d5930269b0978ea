//go:build !e2e

package guest

import "time"

// What make test runs.
const (
	long   = false
	within = 40 * time.Minute // it only ends what hangs
)
