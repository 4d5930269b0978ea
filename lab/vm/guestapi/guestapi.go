// Package guestapi provides a Kubernetes API on the host for a virtual machine, in which it would take minutes to start.
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

// API is a control plane with Berth's CRDs that virtual machines can reach.
type API struct {
	*kube.ControlPlane
	assets     string // directory with Kubernetes' programs, which the guest sees too
	guest      string // directory with the files for the guest
	kubeconfig string // path of the kubeconfig there
}

// Start starts a control plane with controllers and a scheduler, from the programs in assets (see kube.Options), in a new
// directory. The caller must Close it.
func Start(ctx context.Context, assets string) (*API, error) {
	if assets == "" {
		return nil, errors.New("a Kubernetes control plane is needed: set KUBEBUILDER_ASSETS to the directory that hack/kubebox.sh prints")
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
		return nil, errors.Join(fmt.Errorf("export the control plane for virtual machines: %w", err), a.Close())
	}
	return a, nil
}

// Join gives the guest of a machine that has not started yet access to the API server. It returns the environment variables
// for the guest's command: KUBECONFIG, kube.RemoteDir and KUBEBUILDER_ASSETS.
func (a *API) Join(m *vm.Machine) (env []string) {
	m.Reach = append(m.Reach, a.Endpoint())
	return []string{
		kube.RemoteDir + "=" + a.guest,
		"KUBECONFIG=" + a.kubeconfig,
		"KUBEBUILDER_ASSETS=" + a.assets,
	}
}

// Close stops the control plane and removes its directory.
func (a *API) Close() error {
	return errors.Join(a.Stop(), os.RemoveAll(a.Dir))
}
