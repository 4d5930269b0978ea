package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/clock"
)

// arpless is a kernel that may lack nftables' family arp.
type arpless struct {
	Upkeep
	lacks bool
}

func (a *arpless) ARPFiltered() bool { return !a.lacks }

// A kernel that cannot drop pods' ARP requests is told of, once, in log and
// conditions, and so is that it can.
func TestKernelWithoutARPTablesIsToldOf(t *testing.T) {
	var log bytes.Buffer
	kernel := &arpless{lacks: true}
	d := &repairer{upkeep: kernel, conditions: newConditions(clock.Real{}, slog.New(slog.NewTextHandler(&log, nil)))}
	for range 3 {
		d.lookAtARP()
	}
	d.conditions.want(t, ConditionARP, false, "CONFIG_NF_TABLES_ARP")
	if n := strings.Count(log.String(), "CONFIG_NF_TABLES_ARP"); n != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
	kernel.lacks = false // its module was loaded
	d.lookAtARP()
	d.conditions.want(t, ConditionARP, true, "")
}
