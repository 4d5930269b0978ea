package providers

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/internal/vpcport/branch"
	"github.com/berthnet/berth/internal/vpcport/neutron"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// access is how a provider is reached, with the credentials. Two that are equal by reflect.DeepEqual reach the
// same one.
type access interface {
	// open makes no call. The error names the invalid field of the spec.
	open() (opened, error)
}

// opened is an open provider.
type opened struct {
	provider vpcport.Provider
	endpoint string // providers of one endpoint share a limit of concurrent calls
	close    func()
}

// providers return the access by a spec and, if the spec has credentials, their Secret.
var providers = map[v1alpha1.VPCProvider]func(Options, v1alpha1.VPCSpec, *corev1.Secret) (access, *problem){
	v1alpha1.ProviderNeutron: neutronOf,
	v1alpha1.ProviderAlcor:   alcorOf,
	v1alpha1.ProviderEC2:     ec2Of,
}

// injected is the access to Options.Provider.
type injected struct{ provider vpcport.Provider }

func (to injected) open() (opened, error) {
	return opened{provider: to.provider, endpoint: "injected", close: func() {}}, nil
}

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

// toNeutron is the access to Neutron.
type toNeutron struct{ neutron.Settings }

// neutronOf returns the access by a spec and the Secret of its credentials.
func neutronOf(_ Options, spec v1alpha1.VPCSpec, secret *corev1.Secret) (access, *problem) {
	s := neutron.Settings{
		Endpoint: spec.Endpoint, Region: spec.Region, Project: spec.Project,
		ProviderMAC: spec.PortMAC == v1alpha1.PortMACProvider, Agent: "berth-operator/" + version.String(),
	}
	if spec.TLS != nil {
		s.TLS = neutron.TLS{CABundle: spec.TLS.CABundle, ServerName: spec.TLS.ServerName, Insecure: spec.TLS.Insecure}
	}
	if spec.Credentials != nil {
		var why *problem
		if s.Credentials, why = credentialsOf(*spec.Credentials, secret); why != nil {
			return nil, why
		}
	}
	return toNeutron{s}, nil
}

func (to toNeutron) open() (opened, error) {
	p, err := neutron.Open(to.Settings)
	if err != nil {
		return opened{}, err
	}
	return opened{provider: p, endpoint: p.Endpoint() + " " + to.Region, close: p.Close}, nil
}

// The keys of Secrets, as v1alpha1.VPCCredentials documents them.
const (
	keyUser          = "username"
	keyPassword      = "password"
	keyUserDomain    = "userDomain"
	keyProject       = "project"
	keyProjectDomain = "projectDomain"
	keyID            = "id"
	keySecret        = "secret"
)

// needed are the keys that credentials of a type must have. Domains have a default.
var needed = map[v1alpha1.CredentialsType][]string{
	v1alpha1.CredentialsPassword:    {keyUser, keyPassword, keyProject},
	v1alpha1.CredentialsApplication: {keyID, keySecret},
}

// credentialsOf reads credentials from a Secret.
func credentialsOf(c v1alpha1.VPCCredentials, secret *corev1.Secret) (*neutron.Credentials, *problem) {
	keys, known := needed[c.Type]
	if !known {
		return nil, &problem{ofCredentials, ReasonSecretIncomplete, fmt.Sprintf("spec.credentials.type: %q is not known, expected %s or %s", c.Type, v1alpha1.CredentialsPassword, v1alpha1.CredentialsApplication)}
	}
	for _, k := range keys {
		if len(secret.Data[k]) == 0 {
			return nil, &problem{ofCredentials, ReasonSecretIncomplete, fmt.Sprintf("Secret %s/%s lacks the key %s, which credentials of type %s need", secret.Namespace, secret.Name, k, c.Type)}
		}
	}
	text := func(key string) string { return string(secret.Data[key]) }
	if c.Type == v1alpha1.CredentialsApplication {
		return &neutron.Credentials{Application: &neutron.Application{ID: text(keyID), Secret: text(keySecret)}}, nil
	}
	return &neutron.Credentials{Password: &neutron.Password{
		User: text(keyUser), Password: text(keyPassword), UserDomain: text(keyUserDomain),
		Project: text(keyProject), ProjectDomain: text(keyProjectDomain),
	}}, nil
}

// toAlcor is the access to Alcor.
type toAlcor struct{ alcor.Settings }

// alcorOf returns the access by a spec. There are no credentials.
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

func (to toAlcor) open() (opened, error) {
	p, err := alcor.Open(to.Settings)
	if err != nil {
		return opened{}, err
	}
	return opened{provider: p, endpoint: p.Endpoint(), close: p.Close}, nil
}

// EC2 is how VPCs of EC2 are reached: with the operator's own credentials, in its own region, and within the
// rate limits that it keeps for ENIs.
type EC2 struct {
	Cloud   branch.Cloud
	Cluster string          // whose ENIs the ports are
	Settle  time.Duration   // how long replies outrank listings; 0: branch.Settle
	Cooling time.Duration   // how long unused branches are kept; 0: branch.Cooling
	Ended   <-chan struct{} // closed when the operator ends
}

// toEC2 is the access to a VPC of EC2.
type toEC2 struct {
	env      *EC2
	vpc      string
	subnets  []string
	families ipfamily.Set
	clock    clock.Clock
	log      *slog.Logger
}

func ec2Of(o Options, spec v1alpha1.VPCSpec, _ *corev1.Secret) (access, *problem) {
	if o.EC2 == nil {
		return nil, &problem{ofEndpoint, ReasonProviderNotSupported, "spec.provider: ec2 needs an operator that works for ENIs (--ipam eni-operator and port), and this one does not"}
	}
	to := toEC2{env: o.EC2, vpc: spec.Network, families: ipfamily.Set(spec.IPFamilies()), clock: o.Clock, log: o.Logger}
	if spec.EC2 != nil {
		to.subnets = spec.EC2.Subnets
	}
	return to, nil
}

func (to toEC2) open() (opened, error) {
	p := branch.Open(branch.Settings{
		Cloud: to.env.Cloud, Cluster: to.env.Cluster, VPC: to.vpc, Subnets: to.subnets, Families: to.families, Settle: to.env.Settle, Cooling: to.env.Cooling, Ended: to.env.Ended, Clock: to.clock, Logger: to.log,
	})
	return opened{provider: p, endpoint: string(v1alpha1.ProviderEC2), close: func() {}}, nil
}
