//go:build !linux

package cloudfake

import "time"

// threadTime is zero: only benchmarks, which run on Linux, read what calls cost.
func threadTime() time.Duration { return 0 }
