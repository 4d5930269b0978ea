// Package guestapi gives a virtual machine a Kubernetes API that the host runs: in the
// machine it would take minutes to start.
package guestapi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/vm"
)

// API is a control plane with Berth's CRDs that machines reach.
type API struct {
	*kube.ControlPlane
	assets     string // folder with Kubernetes' programs, which the guest sees too
	guest      string // folder with what the guest needs
	kubeconfig string // the one there
}

// Start starts it, with controllers and a scheduler, with the programs in assets (see kube.Options) in a new folder. It ends
// by Close.
func Start(ctx context.Context, assets string) (*API, error) {
	if assets == "" {
		return nil, errors.New("a Kubernetes control plane is needed: set KUBEBUILDER_ASSETS to the folder that hack/kubebox.sh prints")
	}
	dir, err := os.MkdirTemp("", "kube-")
	if err != nil {
		return nil, err
	}
	c, err := kube.Start(ctx, kube.Options{Assets: assets, Dir: dir, CRDs: deploy.CRDs()}.Workloads())
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	a := &API{ControlPlane: c, assets: assets, guest: filepath.Join(dir, "guest")}
	if err = os.Mkdir(a.guest, 0o755); err == nil {
		a.kubeconfig, err = c.Export(a.guest, vm.HostAddr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write down how a virtual machine reaches the control plane: %w", err), a.Close())
	}
	return a, nil
}

// Join lets the guest of a machine that is to be started reach the API server, and
// returns what its command finds it and Kubernetes' programs by: KUBECONFIG, kube.RemoteDir
// and KUBEBUILDER_ASSETS.
func (a *API) Join(m *vm.Machine) (env []string) {
	m.Reach = append(m.Reach, a.Endpoint())
	return []string{
		kube.RemoteDir + "=" + a.guest,
		"KUBECONFIG=" + a.kubeconfig,
		"KUBEBUILDER_ASSETS=" + a.assets,
	}
}

// Close ends the control plane and removes its folder.
func (a *API) Close() error {
	return errors.Join(a.Stop(), os.RemoveAll(a.Dir))
}
