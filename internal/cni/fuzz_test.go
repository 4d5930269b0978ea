package cni

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// Every configuration is either accepted within its limits, or rejected with a CNI error that has a message.
func FuzzNetconf(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"name":"berth","cniVersion":"1.1.0","type":"berth","socket":"/run/x","mtu":1500,"timeout":"60s"}`,
		`{"timeout":60,"mtu":"x","socket":""}`, `{"dns":{"nameservers":["10.0.0.2"]},"ipam":{"type":"x"},"runtimeConfig":{"ips":["a"],"mac":"b"}}`,
		`{"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`, `{"cni.dev/attachments":null}`, `{"mtu":1e99}`,
		`{"cniVersion":"1.0.0","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.0.0.5/32"}]}}`,
		`{"cniVersion":"0.4.0","prevResult":{"cniVersion":"0.4.0","interfaces":[null],"ips":[{"version":"4","interface":-1,"address":"10.0.0.5/32"}],"routes":[null]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parseNetwork(text)
		wellFormed(t, err)
		if err == nil && (n.Socket == "" || n.Socket[0] != '/' || len(n.Socket) > maxSocket || n.timeout() < minTimeout || n.timeout() > maxTimeout) {
			t.Errorf("%q was accepted as %+v", text, n)
		}
		c, err := parseAdd(text)
		wellFormed(t, err)
		if err == nil && c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
			t.Errorf("%q was accepted as %+v", text, c)
		}
		valid, err := validAttachments(text)
		wellFormed(t, err)
		for _, a := range valid {
			if a.ContainerID == "" || a.IfName == "" {
				t.Errorf("%q was accepted as %v", text, a)
			}
		}
		for _, version := range Versions.SupportedVersions() {
			result, err := network{CNIVersion: version}.previousResult(text)
			wellFormed(t, err)
			if err != nil {
				continue
			}
			addrs, links, err := addressesIn(result, &skel.CmdArgs{IfName: "eth0", Netns: "/n"})
			wellFormed(t, err)
			if err == nil && len(addrs) == 0 {
				t.Errorf("%q was accepted without an address", text)
			}
			for _, l := range links {
				if len(l.Addresses) == 0 {
					t.Errorf("%q was accepted with an interface without an address", text)
				}
			}
		}
	})
}

// CNI_ARGS are either parsed literally, or rejected with a CNI error.
func FuzzArgs(f *testing.F) {
	for _, seed := range []string{
		"", ";", "=", "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=d",
		"K8S_POD_NAME=", "K8S_POD_NAME=a=b", "IgnoreUnknown=maybe", "CommonArgs=x", "COLOR=blue;IgnoreUnknown=true", "K8S_POD_NAME=a;K8S_POD_NAME=b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		pod, err := parseArgs(text)
		wellFormed(t, err)
		if err != nil {
			return
		}
		for _, v := range []string{pod.Name, pod.Namespace, pod.UID} {
			if v != "" && !strings.Contains(text, "="+v) || strings.ContainsAny(v, ";=") {
				t.Errorf("%q was parsed as %q", text, v)
			}
		}
	})
}

// wellFormed asserts that an error is a CNI error with a code and a message, which can be encoded.
func wellFormed(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	var e *types.Error
	if !errors.As(err, &e) || e.Code == 0 || e.Msg == "" {
		t.Fatalf("error is not a CNI error: %#v", err)
	}
	if _, err := json.Marshal(e); err != nil {
		t.Fatalf("error cannot be encoded: %v", err)
	}
}
