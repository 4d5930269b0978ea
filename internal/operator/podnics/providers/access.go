package providers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
)

// access is all by which a provider is opened, credentials included. Two that are equal
// by reflect.DeepEqual are of the same provider.
type access interface {
	// open talks to nobody. The error names the field of the spec that cannot be.
	open() (opened, error)
}

// opened is a provider that was opened.
type opened struct {
	provider vpcport.Provider
	endpoint string // the same for providers whose calls are counted together
	close    func()
}

// providers are those that there are: each tells the access of a spec and, where the spec
// has credentials, their Secret.
var providers = map[v1alpha1.VPCProvider]func(Options, v1alpha1.VPCSpec, *corev1.Secret) (access, *problem){
	v1alpha1.ProviderNeutron: neutronOf,
	v1alpha1.ProviderAlcor:   alcorOf,
	v1alpha1.ProviderEC2:     ec2Of,
}

// injected is the access to a provider that is there already.
type injected struct{ provider vpcport.Provider }

// open implements access.
func (to injected) open() (opened, error) {
	return opened{provider: to.provider, endpoint: "injected", close: func() {}}, nil
}

// accessOf is the access to the provider of a VPC.
func accessOf(o Options, spec v1alpha1.VPCSpec, secret *corev1.Secret) (access, *problem) {
	if o.Provider != nil {
		return injected{o.Provider}, nil
	}
	of, known := providers[spec.Provider]
	if !known {
		var names []string
		for _, p := range slices.Sorted(maps.Keys(providers)) {
			names = append(names, string(p))
		}
		return nil, &problem{ofEndpoint, ReasonProviderNotSupported, fmt.Sprintf("spec.provider: this release has no provider %s, expected %s", spec.Provider, strings.Join(names, " or "))}
	}
	return of(o, spec, secret)
}
