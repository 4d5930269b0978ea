//go:build e2e

package guest

import "time"

// What make e2e runs.
const (
	long   = true
	within = 55 * time.Minute // it only ends what hangs
)
