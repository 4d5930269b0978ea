package host

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/lab/run/cgroup"
)

func TestContainerdConfigurationByVersion(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]struct{ version, has string }{
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3": {"1.6.20", "sandbox_image"},
		"containerd github.com/containerd/containerd v1.7.27 05044ec0a9a7":            {"1.7.27", "sandbox_image"},
		"containerd github.com/containerd/containerd/v2 2.3.7 unknown":                {"2.3.7", "pinned_images"},
		"containerd github.com/containerd/containerd/v2 v2.0.0-rc.1 x":                {"2.0.0-rc.1", "pinned_images"},
	} {
		c, err := parseVersion("/d", said)
		if err != nil || c.Version != want.version || c.Dir != "/d" {
			t.Errorf("parseVersion(%q) = %+v, %v; want version %s", said, c, err, want.version)
		}
		text := c.configuration("overlayfs")
		if !strings.Contains(text, want.has) || !strings.Contains(text, PauseImage) || !strings.Contains(text, `snapshotter = "overlayfs"`) {
			t.Errorf("configuration for %q: want %q, the pause image and the snapshotter in\n%s", said, want.has, text)
		}
	}
	for _, said := range []string{"", "containerd x", "containerd github.com/containerd/containerd unknown"} {
		if c, err := parseVersion("/d", said); err == nil {
			t.Errorf("parseVersion(%q) = %+v, want error", said, c)
		}
	}
}

func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	const group = cgroup.Group("vpclab-x-node-1")
	c := Cluster{DNS: netip.MustParseAddr("10.96.0.10"), ProviderID: "aws:///a/i-1", MaxPods: 29}
	got := c.kubeletConfiguration(group)
	for field, want := range map[string]any{
		"cgroupRoot": "/vpclab-x-node-1", "maxPods": 29, "providerID": "aws:///a/i-1",
	} {
		if got[field] != want {
			t.Errorf("%s = %v, want %v", field, got[field], want)
		}
	}
	c.ProviderID, c.MaxPods = "", 0
	got = c.kubeletConfiguration(group)
	if _, there := got["providerID"]; there || got["maxPods"] != 110 {
		t.Errorf("machine without a cloud: providerID = %v, maxPods = %v; want none and 110", got["providerID"], got["maxPods"])
	}
	if data, err := json.Marshal(got); err != nil || !strings.Contains(string(data), `"anonymous":{"enabled":false}`) {
		t.Errorf("kubelet accepts anonymous requests: %s, %v", data, err)
	}
}

func TestKubeletArguments(t *testing.T) {
	t.Parallel()
	h := New(Options{Name: "node-1"})
	h.cluster = &Cluster{
		Addresses: []netip.Addr{netip.MustParseAddr("172.20.1.2"), netip.MustParseAddr("fd00::2")},
		Labels:    map[string]string{"b": "2", "a": "1"},
	}
	args := strings.Join(h.kubeletCommand().Args, " ")
	for _, want := range []string{"--hostname-override=node-1", "--node-ip=172.20.1.2,fd00::2", "--node-labels=a=1,b=2"} {
		if !strings.Contains(args, want) {
			t.Errorf("%s is missing in %s", want, args)
		}
	}
}
