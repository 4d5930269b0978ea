package providers

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// toAlcor is the access to an Alcor.
type toAlcor struct{ alcor.Settings }

// alcorOf is the access that a spec tells. There are no credentials.
func alcorOf(_ Options, spec v1alpha1.VPCSpec, _ *corev1.Secret) (access, *problem) {
	s := alcor.Settings{
		Endpoint: spec.Endpoint, Project: spec.Project,
		ProviderMAC: spec.PortMAC == v1alpha1.PortMACProvider, Agent: "berth-operator/" + version.String(),
	}
	if spec.TLS != nil {
		s.TLS = rest.TLS{CABundle: spec.TLS.CABundle, ServerName: spec.TLS.ServerName, Insecure: spec.TLS.Insecure}
	}
	if spec.Alcor != nil {
		s.NetnsPrefix = spec.Alcor.NetnsPrefix
	}
	return toAlcor{s}, nil
}

// open implements access.
func (to toAlcor) open() (opened, error) {
	p, err := alcor.Open(to.Settings)
	if err != nil {
		return opened{}, err
	}
	return opened{provider: p, endpoint: p.Endpoint(), close: p.Close}, nil
}
