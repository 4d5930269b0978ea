//go:build guest

package egress

import (
	"os"
	"testing"

	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berthd", "berth", "berth-operator", "berth-egress"))
}
