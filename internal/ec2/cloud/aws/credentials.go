package aws

import (
	"context"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
)

// credentials marks the errors of fetching credentials, so that they are told
// from errors of the call that they were fetched for.
type credentials struct {
	cache *sdk.CredentialsCache
}

// noCredentials is the failure to get credentials; nothing was sent to EC2.
type noCredentials struct{ err error }

func (e *noCredentials) Error() string {
	return "no AWS credentials (give the pod an IAM role, the instance an instance profile with metadata reachable, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY): " + e.err.Error()
}

func (e *noCredentials) Unwrap() error { return e.err }

func newCredentials(p sdk.CredentialsProvider) *credentials {
	cache, ok := p.(*sdk.CredentialsCache)
	if !ok {
		cache = sdk.NewCredentialsCache(p)
	}
	return &credentials{cache}
}

// Retrieve implements the SDK's CredentialsProvider.
func (c *credentials) Retrieve(ctx context.Context) (sdk.Credentials, error) {
	v, err := c.cache.Retrieve(ctx)
	if err != nil {
		return v, &noCredentials{err}
	}
	return v, nil
}

// forget makes the next Retrieve fetch new credentials.
func (c *credentials) forget() { c.cache.Invalidate() }
