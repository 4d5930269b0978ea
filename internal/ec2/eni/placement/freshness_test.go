package placement

import (
	"testing"
	"time"
)

// When subnets are asked about although the node does not grow, seen at second 10.
func TestFreshnessDue(t *testing.T) {
	for _, c := range []struct {
		name string
		of   freshness
		want time.Time
	}{
		{"nothing is lacking", freshness{asOf: unix(5)}, time.Time{}},
		{"a subnet worth another try", freshness{retryAt: unix(50)}, unix(50)},
		{"an exhausted subnet, asked for oneself", freshness{exhausted: true, asOf: unix(5)}, unix(65)},
		{"an exhausted subnet, asked for many", freshness{exhausted: true, asOf: unix(5), shared: true}, unix(15)},
		{"outdated ENIs", freshness{drains: true, asOf: unix(5)}, unix(605)},
	} {
		if got := c.of.due(unix(10)); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
