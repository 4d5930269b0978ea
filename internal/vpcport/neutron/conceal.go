package neutron

import (
	"errors"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/berthnet/berth/internal/vpcport"
)

// concealed stands for a secret in what people see.
const concealed = "(concealed)"

// conceal takes the credentials and the token out of an error: a server, or a proxy
// before it, may answer with what it was sent. Client may be nil.
func (p *Provider) conceal(err error, client *gophercloud.ProviderClient) error {
	e, ok := errors.AsType[*vpcport.Error](err)
	if !ok {
		return err
	}
	var secrets []string
	if c := p.settings.Credentials; c != nil && c.Password != nil {
		secrets = append(secrets, c.Password.Password)
	}
	if c := p.settings.Credentials; c != nil && c.Application != nil {
		secrets = append(secrets, c.Application.Secret)
	}
	if client != nil {
		secrets = append(secrets, client.Token())
	}
	clean := *e
	for _, s := range secrets {
		if s == "" {
			continue
		}
		for _, text := range []*string{&clean.Message, &clean.Type, &clean.About} {
			*text = strings.ReplaceAll(*text, s, concealed)
		}
		if clean.Err != nil && strings.Contains(clean.Err.Error(), s) {
			clean.Err = errors.New(strings.ReplaceAll(clean.Err.Error(), s, concealed))
		}
	}
	return &clean
}
