//go:build e2e

package guest

import "time"

func init() { long, within = true, 55*time.Minute }
