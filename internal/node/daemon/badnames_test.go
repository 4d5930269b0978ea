package daemon

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/rpc"
)

// The daemon refuses names that no runtime should give, whoever calls it, and
// keeps nothing of them.
func TestNamesAreBounded(t *testing.T) {
	n := newNode(t, "10.0.0.5", "10.0.0.6")
	r := n.restart(nil)
	ns := n.newNetns("a")
	long := strings.Repeat("x", 100<<10)
	for name, change := range map[string]func(*rpc.AddRequest){
		"K8S_POD_NAME is 102400 bytes":      func(a *rpc.AddRequest) { a.Pod.Name = long },
		"K8S_POD_NAME is 254 bytes":         func(a *rpc.AddRequest) { a.Pod.Name = long[:254] },
		"K8S_POD_NAMESPACE is 64 bytes":     func(a *rpc.AddRequest) { a.Pod.Namespace = long[:64] },
		"K8S_POD_UID is 129 bytes":          func(a *rpc.AddRequest) { a.Pod.Uid = long[:129] },
		"CNI_CONTAINERID is 1025 bytes":     func(a *rpc.AddRequest) { a.Attachment.ContainerId = long[:1025] },
		"CNI_IFNAME is 16 bytes":            func(a *rpc.AddRequest) { a.Attachment.IfName = long[:16] },
		"name of the network is 254 bytes":  func(a *rpc.AddRequest) { a.Attachment.Network = long[:254] },
		"CNI_NETNS is 4096 bytes":           func(a *rpc.AddRequest) { a.Netns = long[:4096] },
		`K8S_POD_NAME is "a\x1b[2Jb"`:       func(a *rpc.AddRequest) { a.Pod.Name = "a\x1b[2Jb" },
		`K8S_POD_NAME is "a\u202eb"`:        func(a *rpc.AddRequest) { a.Pod.Name = "a\u202eb" },
		`K8S_POD_NAMESPACE is "a b"`:        func(a *rpc.AddRequest) { a.Pod.Namespace = "a b" },
		`K8S_POD_UID is "a\n"`:              func(a *rpc.AddRequest) { a.Pod.Uid = "a\n" },
		`CNI_CONTAINERID is "a\u009b"`:      func(a *rpc.AddRequest) { a.Attachment.ContainerId = "a\u009b" },
		`CNI_CONTAINERID is "a/b"`:          func(a *rpc.AddRequest) { a.Attachment.ContainerId = "a/b" },
		`CNI_IFNAME is "e\x1bth"`:           func(a *rpc.AddRequest) { a.Attachment.IfName = "e\x1bth" },
		`CNI_IFNAME is "eth%d"`:             func(a *rpc.AddRequest) { a.Attachment.IfName = "eth%d" },
		"CNI_CONTAINERID is empty":          func(a *rpc.AddRequest) { a.Attachment.ContainerId = "" },
		"CNI_CONTAINERID is empt":           func(a *rpc.AddRequest) { a.Attachment = nil },
		"CNI_NETNS is empty":                func(a *rpc.AddRequest) { a.Netns = "" },
		`CNI_IFNAME is "../x"`:              func(a *rpc.AddRequest) { a.Attachment.IfName = "../x" },
		`CNI_IFNAME is ".."`:                func(a *rpc.AddRequest) { a.Attachment.IfName = ".." },
		`name of the network is "berth\x00`: func(a *rpc.AddRequest) { a.Attachment.Network = "berth\x00" },
		`CNI_NETNS is "/run/\x1bnetns"`:     func(a *rpc.AddRequest) { a.Netns = "/run/\x1bnetns" },
	} {
		req := addOf("a", ns)
		change(req)
		if message := r.refused(t, req, types.ErrInvalidEnvironmentVariables).GetMessage(); !strings.HasPrefix(message, name) || len(message) > 4200 {
			t.Errorf("%s: %.200s", name, message)
		}
	}
	if left := r.Store.Records(); len(left) > 0 {
		t.Errorf("records %v", left)
	}
	req := addOf("A-z_0.9", ns)
	req.Pod = &rpc.Pod{Namespace: long[:63], Name: long[:253], Uid: "Café_1"}
	if _, err := r.client.Add(within(t), req); err != nil {
		t.Errorf("good names: %v", err)
	}
}
