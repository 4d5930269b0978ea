// Package operator holds the tests of operator mode as a whole: the real
// Kubernetes API, the real operator and daemons, and the lab's EC2 and packets.
package operator

import (
	"os"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth", "berth-operator")) }

// quick are settings of daemons, and operators, under which nothing takes long.
var (
	quickDaemon = []string{
		"--log-level=debug", "--cni-chain=", "--cooling-period=1s", "--netns-grace=1s", "--repair-interval=5s", "--warm-wait=20s",
	}
	quickOperator = []string{
		"--log-level=debug", "--shrink-delay=300ms", "--listing-interval=2s",
		// A leader that is too slow to renew its Lease ends; no test here is about that.
		"--lease-duration=3600s", "--renew-deadline=3000s",
	}
)

// patience ends a test that hangs: a machine that is busy with others may stand
// still for long.
const patience = 5 * time.Minute
