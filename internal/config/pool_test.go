package config

import (
	"strings"
	"testing"
	"time"
)

func TestPoolMode(t *testing.T) {
	c, err := load(t, []string{"--ipam=pool", "--withdraw-on-exit", "--kubeconfig=/k", "--node-name=n"}, []string{"BERTH_BLOCK_WATERMARK=50", "BERTH_EXPORT_TABLE=120"})
	if err != nil || c.IPAM != IPAMPool || !c.WithdrawOnExit || c.BlockWatermark != 50 || c.ExportTable != 120 || c.BlockReleaseDelay != 5*time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := load(t, []string{"--ipam=pool"}, nil); err != nil || c.ExportTable != 119 || c.BlockWatermark != 25 || c.WithdrawOnExit {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestPoolModeMistakes(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--withdraw-on-exit"}, "--withdraw-on-exit needs --ipam=pool"},
		{[]string{"--ipam=eni-operator", "--export-table=7"}, "--export-table needs --ipam=pool"},
		{[]string{"--ipam=pool", "--auto-create-node-network"}, "needs --ipam=eni-operator"},
		{[]string{"--ipam=pool", "--warm-ip-target=2", "--external-snat"}, "--warm-ip-target, --external-snat: of no meaning"},
		{[]string{"--ipam=pool", "--subnets=subnet-1"}, "--subnets: of no meaning"},
		{[]string{"--ipam=pool", "--export-table=254"}, "but for 253 to 255"},
		{[]string{"--ipam=pool", "--export-table=0"}, "expected the number of a routing table"},
		{[]string{"--ipam=pool", "--block-watermark=101"}, "from 0 to 100"},
		{[]string{"--ipam=pool", "--block-release-delay=-1s"}, "expected a duration"},
	} {
		if _, err := load(t, tc.args, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %s", tc.args, err, tc.want)
		}
	}
}
