package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/rpcfake"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

const netns = "/run/netns/berth-cni-test-none"

// atLeast compares versions of the table above, which is ordered as text.
func atLeast(v, than string) bool { return v >= than }

// dualStack returns a reply with both families.
func dualStack(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
	r := rpcfake.DefaultReply("eth0")
	r.Addresses = append(r.Addresses, "2001:db8::1e/128")
	r.Routes = append(r.Routes, &rpc.Route{Dst: "::/0", Gateway: "fe80::1"})
	return r, nil
}

func TestResults(t *testing.T) {
	socket := rpcfake.Start(t, &rpcfake.Node{OnAdd: dualStack})
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			wantResult(t, conf(socket, v, "dns", `{"nameservers":["10.0.0.2"]}`), v)
		})
	}
}

// wantResult compares the output of an ADD with a golden file.
func wantResult(t *testing.T, conf, name string) {
	t.Helper()
	got, failure := invocation{verb: "ADD", conf: conf}.run(t)
	if failure != nil {
		t.Fatal(failure)
	}
	golden := filepath.Join("testdata", "result-"+name+".json")
	if *update {
		must(t, os.WriteFile(golden, append(bytes.TrimSpace(got), '\n'), 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if diff := cmp.Diff(string(bytes.TrimSpace(want)), string(bytes.TrimSpace(got))); diff != "" {
		t.Errorf("result differs from %s (-want +got):\n%s", golden, diff)
	}
}

// withNICs returns the reply for a pod with NICs: one with its own link on the node and the default route, and one without
// either.
func withNICs(r *rpc.AddReply) *rpc.AddReply {
	r.Links = []*rpc.Link{
		{
			Host: &rpc.Interface{Name: "tapa2815656-76", Mac: "0a:00:00:00:00:03"}, Sandbox: &rpc.Interface{Name: "eth1", Mac: "fa:16:3e:00:00:01"},
			Addresses: []*rpc.Address{{Cidr: "192.168.0.12/24", Gateway: "192.168.0.1"}, {Cidr: "2001:db8:1::c/64"}},
			Routes:    []*rpc.Route{{Dst: "0.0.0.0/0", Gateway: "192.168.0.1"}, {Dst: "172.16.0.0/12", Gateway: "192.168.0.254"}}, Mtu: 1442,
		},
		{
			Host: &rpc.Interface{}, Sandbox: &rpc.Interface{Name: "eth2", Mac: "fa:16:3e:00:00:02"},
			Addresses: []*rpc.Address{{Cidr: "192.168.0.12/24"}}, Mtu: 1500,
		},
	}
	return r
}

// A result has all interfaces of a pod with NICs, and each address refers to its interface. If the first interface is a
// NIC, it may have no link on the node.
func TestResultsWithNICs(t *testing.T) {
	port := func(r *rpc.AddReply) *rpc.AddReply {
		r.Host, r.Addresses, r.Mtu = &rpc.Interface{}, []string{"192.168.7.5/24"}, 1442
		r.Routes = []*rpc.Route{{Dst: "0.0.0.0/0", Gateway: "192.168.7.1"}}
		return r
	}
	for name, reply := range map[string]func(*rpc.AddReply) *rpc.AddReply{
		"nics": withNICs, "port": port, "ports": func(r *rpc.AddReply) *rpc.AddReply { return withNICs(port(r)) },
	} {
		socket := rpcfake.Start(t, &rpcfake.Node{OnAdd: func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
			return reply(rpcfake.DefaultReply("eth0")), nil
		}})
		for _, v := range []string{"0.3.1", "1.0.0", "1.1.0"} {
			t.Run(name+" "+v, func(t *testing.T) { wantResult(t, conf(socket, v), name+"-"+v) })
		}
	}
}

// Replies are bounded, and each part of them is checked.
func TestInvalidReplies(t *testing.T) {
	link := func(spoil func(*rpc.Link)) func(*rpc.AddReply) {
		return func(r *rpc.AddReply) {
			r.Links = r.GetLinks()[:1]
			spoil(r.Links[0])
		}
	}
	for says, spoil := range map[string]func(*rpc.AddReply){
		"the address 10.0.0.1;":           func(r *rpc.AddReply) { r.Addresses = []string{"10.0.0.1"} },
		"the route default;":              func(r *rpc.AddReply) { r.Routes = []*rpc.Route{{Dst: "default"}} },
		"the gateway x;":                  func(r *rpc.AddReply) { r.Routes = []*rpc.Route{{Dst: "0.0.0.0/0", Gateway: "x"}} },
		"more than 32 further interfaces": func(r *rpc.AddReply) { r.Links = slices.Repeat(r.GetLinks()[:1], 33) },
		"16 addresses":                    link(func(l *rpc.Link) { l.Addresses = slices.Repeat(l.GetAddresses()[:1], 17) }),
		"66 routes":                       link(func(l *rpc.Link) { l.Routes = slices.Repeat(l.GetRoutes()[:1], 67) }),
		"the address 10.0.0/8;":           link(func(l *rpc.Link) { l.Addresses[0].Cidr = "10.0.0/8" }),
		"the gateway here;":               link(func(l *rpc.Link) { l.Addresses[0].Gateway = "here" }),
		"the route x/0;":                  link(func(l *rpc.Link) { l.Routes[0].Dst = "x/0" }),
	} {
		socket := rpcfake.Start(t, &rpcfake.Node{OnAdd: func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
			reply := withNICs(rpcfake.DefaultReply("eth0"))
			spoil(reply)
			return reply, nil
		}})
		invocation{verb: "ADD", conf: conf(socket, "1.0.0")}.check(t, types.ErrInternal, says, "same release")
	}
}

// The whole life of an attachment as driven by a runtime.
func TestAttachmentLifecycle(t *testing.T) {
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			n := &rpcfake.Node{OnAdd: dualStack}
			cni, list := runtime(t, v, conf(rpcfake.Start(t, n), v, "mtu", "1500"))
			rt := &libcni.RuntimeConf{ContainerID: "c0ffee", NetNS: netns, IfName: "eth0", Args: [][2]string{
				{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "ns"}, {"K8S_POD_NAME", "pod"},
				{"K8S_POD_INFRA_CONTAINER_ID", "c0ffee"}, {"K8S_POD_UID", "uid"}, {"OTHER", "x"},
			}}
			attachment := &rpc.Attachment{Network: "berth", ContainerId: "c0ffee", IfName: "eth0"}
			want := []proto.Message{&rpc.AddRequest{
				Attachment: attachment, Netns: netns, Mtu: 1500, Pod: &rpc.Pod{Namespace: "ns", Name: "pod", Uid: "uid"},
			}}
			if _, err := cni.AddNetworkList(t.Context(), list, rt); err != nil {
				t.Fatal(err)
			}
			if atLeast(v, "0.4.0") {
				want = append(want, &rpc.CheckRequest{Attachment: attachment, Netns: netns, Addresses: []string{"10.0.97.30/32", "2001:db8::1e/128"}})
				if err := cni.CheckNetworkList(t.Context(), list, rt); err != nil {
					t.Error(err)
				}
			}
			if atLeast(v, "1.1.0") {
				want = append(want,
					&rpc.GCRequest{Network: "berth", Valid: []*rpc.Attachment{{ContainerId: "c0ffee", IfName: "eth0"}}}, &rpc.GCRequest{Network: "berth"})
				valid := []types.GCAttachment{{ContainerID: "c0ffee", IfName: "eth0"}}
				// The second GC makes libcni send a null list, after its own DEL.
				if err := errors.Join(answered(t, cni, list),
					cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: valid}),
					libcni.NewCNIConfigWithCacheDir(cni.Path, t.TempDir(), nil).GCNetworkList(t.Context(), list, &libcni.GCArgs{})); err != nil {
					t.Error(err)
				}
			}
			want = append(want, &rpc.DelRequest{Attachment: attachment, Netns: netns}, &rpc.DelRequest{Attachment: attachment})
			if err := cni.DelNetworkList(t.Context(), list, rt); err != nil {
				t.Error(err)
			}
			rt.NetNS = ""
			if err := cni.DelNetworkList(t.Context(), list, rt); err != nil {
				t.Errorf("second DEL, without a namespace: %v", err)
			}
			calls, asked := withoutStatus(n.Calls())
			if diff := cmp.Diff(want, calls, protocmp.Transform()); diff != "" {
				t.Errorf("calls to the daemon (-want +got):\n%s", diff)
			}
			if atLeast(v, "1.1.0") != slices.Contains(asked, "berth") {
				t.Errorf("networks in STATUS calls = %q", asked)
			}
		})
	}
}

// answered calls STATUS until the daemon answers within the five seconds of its timeout.
func answered(t *testing.T, cni *libcni.CNIConfig, list *libcni.NetworkConfigList) (err error) {
	t.Helper()
	for range 9 {
		if err = cni.GetStatusNetworkList(t.Context(), list); err == nil || !strings.Contains(err.Error(), "did not finish within") {
			break
		}
	}
	return err
}

// withoutStatus separates STATUS calls from others: a call that timed out may reach the daemon at any later time.
func withoutStatus(all []proto.Message) (calls []proto.Message, networks []string) {
	for _, m := range all {
		if s, ok := m.(*rpc.StatusRequest); ok {
			networks = append(networks, s.GetNetwork())
		} else {
			calls = append(calls, m)
		}
	}
	return calls, networks
}

// The result of chained plugins, which they may have extended, is CHECKed for Berth's part.
func TestCheckOfChainedResult(t *testing.T) {
	n := &rpcfake.Node{}
	prev := `{"cniVersion":"1.0.0","interfaces":[{"name":"bth1"},{"name":"eth0","sandbox":"` + netns + `"},{"name":"ifb1"},{"name":"net1","sandbox":"` + netns + `"}],
		"ips":[{"interface":3,"address":"192.168.0.1/24"},{"interface":1,"address":"10.0.0.5/32"},{"address":"10.0.0.6/32"}]}`
	if _, failure := (invocation{verb: "CHECK", conf: conf(rpcfake.Start(t, n), "1.0.0", "prevResult", prev)}).run(t); failure != nil {
		t.Fatal(failure)
	}
	want := &rpc.CheckRequest{
		Attachment: &rpc.Attachment{Network: "berth", ContainerId: "c0ffee", IfName: "eth0"}, Netns: netns,
		Addresses: []string{"10.0.0.5/32", "10.0.0.6/32"},
		Links:     []*rpc.Link{{Host: &rpc.Interface{}, Sandbox: &rpc.Interface{Name: "net1"}, Addresses: []*rpc.Address{{Cidr: "192.168.0.1/24"}}}},
	}
	if diff := cmp.Diff(want, n.Calls()[0], protocmp.Transform()); diff != "" {
		t.Errorf("CHECK request at the daemon (-want +got):\n%s", diff)
	}
}

// After another network's plugins, the daemon gets the addresses that they assigned, and the runtime gets their result
// unchanged, in every version.
func TestAfterOtherPlugins(t *testing.T) {
	n := &rpcfake.Node{OnAdd: func(context.Context, *rpc.AddRequest) (*rpc.AddReply, error) {
		return &rpc.AddReply{Chained: true}, nil
	}}
	socket := rpcfake.Start(t, n)
	for k, v := range versions {
		prev := `{"cniVersion":"` + v + `","interfaces":[{"name":"veth1","mac":"0a:00:00:00:00:01"},{"name":"eth0","mac":"0a:00:00:00:00:02","sandbox":"` + netns + `"}],
			"ips":[{"version":"4","interface":1,"address":"10.4.0.7/24","gateway":"10.4.0.1"},{"version":"6","interface":1,"address":"2001:db8:4::7/64"}],
			"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.0.0.2"]}}`
		if atLeast(v, "1.0.0") {
			prev = strings.NewReplacer(`"version":"4",`, "", `"version":"6",`, "").Replace(prev)
		}
		if atLeast(v, "1.1.0") {
			prev = strings.Replace(prev, `"mac":"0a:00:00:00:00:02"`, `"mac":"0a:00:00:00:00:02","mtu":1450`, 1)
		}
		out, failure := invocation{verb: "ADD", conf: conf(socket, v, "prevResult", prev, "dns", `{"domain":"not.this.one"}`)}.run(t)
		if failure != nil {
			t.Fatal(failure)
		}
		var want, got any
		must(t, errors.Join(json.Unmarshal([]byte(prev), &want), json.Unmarshal(out, &got)))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("version %s: the result changed (-before +after):\n%s", v, diff)
		}
		asked := n.Calls()[k].(*rpc.AddRequest).GetPrevious()
		if diff := cmp.Diff(&rpc.Previous{Addresses: []string{"10.4.0.7/24", "2001:db8:4::7/64"}}, asked, protocmp.Transform()); diff != "" {
			t.Errorf("version %s: previous result at the daemon (-want +got):\n%s", v, diff)
		}
	}
}

// A daemon that does not support chaining would assign an address to the pod.
func TestAfterOtherPluginsWithOlderDaemon(t *testing.T) {
	prev := `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"` + netns + `"}],"ips":[{"interface":0,"address":"10.4.0.7/24"}]}`
	_, failure := invocation{verb: "ADD", conf: conf(rpcfake.Start(t, &rpcfake.Node{}), "1.0.0", "prevResult", prev)}.run(t)
	if failure == nil || !strings.Contains(failure.Msg, "ignored prevResult") {
		t.Errorf("ADD error = %v, want one about the ignored prevResult", failure)
	}
}

// maxSize is the budget `plugin-size` (docs/contribute/design.md, "Budgets") in bytes.
const maxSize = 12 << 20

func TestPluginSize(t *testing.T) {
	info, err := os.Stat(filepath.Join(pluginDir, "berth"))
	must(t, err)
	if info.Size() > maxSize {
		t.Errorf("size of the plugin = %.1f MiB, want at most %d MiB", float64(info.Size())/(1<<20), maxSize>>20)
	}
}

func TestPluginWithoutCommandPrintsVersions(t *testing.T) {
	cmd := invocation{}.command(t.Context())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || len(out) != 0 || !strings.Contains(stderr.String(), "CNI plugin berth") || !strings.Contains(stderr.String(), "0.3.1, 0.4.0, 1.0.0, 1.1.0") {
		t.Errorf("output = %q, standard error = %q, error = %v, want name and versions on standard error", out, stderr.String(), err)
	}
}

// The GC of a full node does not fit into one flow control window.
func TestGCWithManyAttachments(t *testing.T) {
	n := &rpcfake.Node{}
	valid := make([]types.GCAttachment, 5000)
	for i := range valid {
		valid[i] = types.GCAttachment{ContainerID: strings.Repeat("a", 60) + string(rune('a'+i%26)), IfName: "eth0"}
	}
	text, err := json.Marshal(valid)
	must(t, err)
	if _, failure := (invocation{verb: "GC", conf: conf(rpcfake.Start(t, n), "1.1.0", "cni.dev/valid-attachments", string(text))}).run(t); failure != nil {
		t.Fatal(failure)
	}
	if got := len(n.Calls()[0].(*rpc.GCRequest).GetValid()); got != len(valid) {
		t.Errorf("daemon got %d attachments, want %d", got, len(valid))
	}
}
