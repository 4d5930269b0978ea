//go:build guest && e2e

package egress

import "testing"

// TestManyFirstConnections is TestFirstConnections with 100 pods.
func TestManyFirstConnections(t *testing.T) { firstConnections(t, "many-first", 100) }
