package lab

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/portcloud"
)

// deaf is a cloud that no machine joins.
type deaf struct {
	portcloud.Cloud
	asked chan struct{} // closed by the first that wants to
}

func (deaf) Access() portcloud.Access {
	return portcloud.Access{Provider: v1alpha1.ProviderNeutron, Endpoint: "http://198.18.0.1:9696", Project: "p"}
}

func (deaf) AddNetwork(_ context.Context, n portcloud.Network) (portcloud.Network, error) {
	n.ID = n.Name
	return n, nil
}

func (deaf) AddGroup(context.Context, string, ...portcloud.Rule) (string, error) { return "g", nil }
func (deaf) Leave(string) error                                                  { return nil }
func (deaf) Close() error                                                        { return nil }

func (d deaf) Join(ctx context.Context, _ portcloud.Host) (portcloud.Joined, error) {
	close(d.asked)
	<-ctx.Done()
	return portcloud.Joined{}, ctx.Err()
}

// An interrupted lab does not wait until a machine has become a compute host.
func TestInterruptedWhileAMachineJoins(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	d := deaf{asked: make(chan struct{})}
	go func() {
		<-d.asked
		interrupt()
	}()
	l, err := Start(ctx, Options{
		Dir: t.TempDir(), Mode: PortMode, Nodes: 2, NoDaemons: true,
		PortCloud: func(context.Context, portcloud.Options) (portcloud.Cloud, error) { return d, nil },
	})
	if err == nil {
		_ = l.Close()
	}
	if !errors.Is(err, context.Canceled) { // after the time that a machine has it would be another
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}

func TestBranchesAreForOperatorMode(t *testing.T) {
	for mode, want := range map[Mode]string{NodeMode: "are for operator mode", PoolMode: "this lab has no EC2"} {
		l, err := Start(t.Context(), Options{Dir: t.TempDir(), Mode: mode, VPCPorts: true, NoDaemons: true, KubeAssets: t.TempDir(), PortCloud: portcloud.NewBranches})
		if err == nil {
			_ = l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s mode: %v, want %q", mode, err, want)
		}
	}
}
