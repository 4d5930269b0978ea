//go:build e2e

package guest

import "time"

func init() { long, within, cases = true, 65*time.Minute, "all" }
