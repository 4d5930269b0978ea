//go:build !linux

package clock

import "time"

// boot is zero: only programs on nodes compare times between processes, and nodes run Linux.
func boot() time.Duration { return 0 }
