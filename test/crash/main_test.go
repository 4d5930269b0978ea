package crash

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness"
)

// soakFlags are the soak options of this run.
var soakFlags options

func TestMain(m *testing.M) {
	soakFlags.register(flag.CommandLine)
	os.Exit(harness.Main(m, "berth", "berthd", "berth-operator", "berth-egress"))
}

// patience is the time limit of any step: it only ends hanging tests.
const patience = 10 * time.Minute
