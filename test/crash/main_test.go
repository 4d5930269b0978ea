package crash

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness"
)

// soakFlags are those of this run.
var soakFlags options

func TestMain(m *testing.M) {
	soakFlags.register(flag.CommandLine)
	os.Exit(harness.Main(m, "berth", "berthd", "berth-operator", "berth-egress"))
}

// patience is how long anything may take: it only ends what hangs.
const patience = 10 * time.Minute
