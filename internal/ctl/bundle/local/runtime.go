package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
)

// criSockets are common paths of runtime sockets, for an empty setting.
var criSockets = []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock", "/run/cri-dockerd.sock"}

func (n *node) socket() (string, error) {
	if n.CRISocket != "" {
		return n.at(n.CRISocket), nil
	}
	for _, s := range criSockets {
		if _, err := os.Stat(n.at(s)); err == nil {
			return n.at(s), nil
		}
	}
	return "", errors.New("no socket of a container runtime at the usual paths: set --cri-socket")
}

// runtimeInfo is the state of a runtime. Only the network part of its configuration is
// collected, as the rest has credentials of registries.
type runtimeInfo struct {
	Version    *cri.VersionResponse    `json:"version,omitempty"`
	Conditions []*cri.RuntimeCondition `json:"conditions,omitempty"`
	Network    map[string]any          `json:"network,omitempty"`
	Sandboxes  []sandbox               `json:"sandboxes,omitempty"`
}

type sandbox struct {
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       string    `json:"uid"`
	State     string    `json:"state"`
	Created   time.Time `json:"created"`
}

func (n *node) runtime(ctx context.Context, s *archive.Sink) error {
	socket, err := n.socket()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return fmt.Errorf("the runtime at %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	client := cri.NewRuntimeServiceClient(conn)
	var info runtimeInfo
	info.Version, err = client.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return fmt.Errorf("the runtime at %s: %w", socket, err)
	}
	status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
	s.Failed("status", err)
	info.Conditions = status.GetStatus().GetConditions()
	info.Network = networkInfo(status.GetInfo())
	sandboxes, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	s.Failed("sandboxes", err)
	for _, p := range sandboxes.GetItems() {
		m := p.GetMetadata()
		info.Sandboxes = append(info.Sandboxes, sandbox{p.GetId(), m.GetNamespace(), m.GetName(), m.GetUid(), p.GetState().String(), time.Unix(0, p.GetCreatedAt()).UTC()})
	}
	return joinJSON(s, "runtime.json", info, nil)
}

// networkInfo returns the network configuration from the status of containerd or CRI-O.
func networkInfo(info map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range info {
		if l := strings.ToLower(k); !strings.Contains(l, "cni") && l != "golang" {
			continue
		}
		var doc any
		if json.Unmarshal([]byte(v), &doc) != nil {
			doc = v
		}
		out[k] = doc
	}
	return out
}
