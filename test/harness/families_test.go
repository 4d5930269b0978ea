package harness

import (
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
)

// Labs of nodes with ENIs have the families that the variable names, unless they name them.
func TestFamiliesOfLabs(t *testing.T) {
	for asked, want := range map[string]ipfamily.Set{"": ipfamily.OnlyIPv4, "ipv4": ipfamily.OnlyIPv4, "dual": ipfamily.Dual, "ipv6": ipfamily.OnlyIPv6} {
		t.Run(asked, func(t *testing.T) {
			t.Setenv(FamiliesVar, asked)
			for _, m := range []lab.Mode{lab.NodeMode, lab.OperatorMode} {
				if got := Quick(m, lab.Options{}).IPFamilies; got != want {
					t.Errorf("%s mode: %q, want %q", m, got, want)
				}
				if got := Quick(m, lab.Options{IPFamilies: ipfamily.OnlyIPv4}).IPFamilies; got != ipfamily.OnlyIPv4 {
					t.Errorf("%s mode: %q, though the lab says ipv4", m, got)
				}
			}
			for _, m := range []lab.Mode{lab.PoolMode, lab.PortMode} {
				if got := Quick(m, lab.Options{}).IPFamilies; got != "" {
					t.Errorf("%s mode: %q, want none", m, got)
				}
			}
		})
	}
	if _, err := families("both"); err == nil || err.Error() != `BERTH_IP_FAMILIES: "both": expected ipv4, ipv6 or dual` {
		t.Errorf("a wrong value: %v", err)
	}
}
