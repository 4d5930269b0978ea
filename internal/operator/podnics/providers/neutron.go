package providers

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/vpcport/neutron"
)

// toNeutron is the access to a Neutron.
type toNeutron struct{ neutron.Settings }

// neutronOf is the access that a spec and the Secret of its credentials tell.
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

// open implements access.
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

// needed are the keys without which credentials of a type are none. Domains have a
// default.
var needed = map[v1alpha1.CredentialsType][]string{
	v1alpha1.CredentialsPassword:    {keyUser, keyPassword, keyProject},
	v1alpha1.CredentialsApplication: {keyID, keySecret},
}

// credentialsOf reads a Secret.
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
