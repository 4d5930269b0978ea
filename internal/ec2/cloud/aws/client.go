// Package aws implements pace.Calls with the EC2 API and cloud.Metadata with the
// instance metadata service, through the official SDK.
//
// The SDK signs, sends and parses. Package pace handles failures, because the handling depends on
// whether a call may be repeated:
//
//	throttled        no effect; the limiter slows down and the call is retried
//	transient        retried if the call is idempotent, otherwise reported: its effect is unknown,
//	                 and the caller has to check first
//	expired          credentials are fetched again, and the call is retried once
//	everything else  reported immediately, with one of the classes of package cloud
//
// The idempotent calls are describe calls, creations (they always have a client token), and calls that
// name what they remove or set: delete, detach, unassign, modify and tag. Attaching and assigning a
// number of addresses are not idempotent.
//
// Package pace also learns EC2's rate limits from refused calls.
package aws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	smithymw "github.com/aws/smithy-go/middleware"

	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// Client sends each call to the EC2 API once; pace.Cloud turns it into a cloud.API. It is safe for
// concurrent use.
type Client struct {
	api    *ec2.Client
	creds  *credentials
	logger *slog.Logger
}

var _ pace.Calls = (*Client)(nil)

// New returns a client. It makes no calls to EC2. If no region is configured, it asks the metadata
// service. Errors name the missing or invalid option.
func New(ctx context.Context, o Options) (*Client, error) {
	o = o.withDefaults()
	for _, u := range []struct{ name, value string }{{"EC2 endpoint", o.EC2Endpoint}, {"metadata endpoint", o.IMDSEndpoint}} {
		if err := checkURL(u.value); err != nil {
			return nil, fmt.Errorf("%s %q: %w", u.name, u.value, err)
		}
	}
	cfg, err := load(ctx, o)
	if err != nil {
		return nil, err
	}
	creds := newCredentials(cfg.Credentials)
	c := &Client{creds: creds, logger: o.Logger}
	c.api = ec2.NewFromConfig(cfg, func(e *ec2.Options) {
		e.Credentials = creds
		e.Retryer = sdk.NopRetryer{}
		if o.EC2Endpoint != "" {
			e.BaseEndpoint = &o.EC2Endpoint
		}
		e.APIOptions = append(e.APIOptions, middleware.AddUserAgentKeyValue(o.agent()), checkAnswers)
	})
	return c, nil
}

// load reads the SDK's configuration. Its retryer applies only to fetching the credentials and the region.
func load(ctx context.Context, o Options) (sdk.Config, error) {
	opts := []func(*config.LoadOptions) error{
		config.WithHTTPClient(o.HTTPClient),
		config.WithLogger(o.sdkLogger()),
		config.WithAPIOptions([]func(*smithymw.Stack) error{boundAnswers(maxAnswer, maxRefusal)}),
	}
	if o.Region != "" {
		opts = append(opts, config.WithRegion(o.Region))
	}
	if o.IMDSEndpoint != "" {
		opts = append(opts, config.WithEC2IMDSEndpoint(o.IMDSEndpoint))
	}
	if o.Credentials != nil {
		opts = append(opts, config.WithCredentialsProvider(o.Credentials))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return sdk.Config{}, fmt.Errorf("loading the AWS configuration: %w", err)
	}
	if cfg.Region != "" {
		return cfg, nil
	}
	if o.Region, err = NewMetadata(o).region(ctx); err != nil {
		return sdk.Config{}, fmt.Errorf("finding the AWS region; set AWS_REGION or the region option where there is no metadata service: %w", err)
	}
	// The providers of credentials have copied the configuration, and STS needs a region, too.
	return load(ctx, o)
}

// checkURL accepts the empty string and absolute http and https URLs.
func checkURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return errors.New("expected an http or https URL such as https://ec2.eu-west-1.amazonaws.com")
	}
	return nil
}

// credentials wraps errors of fetching credentials in noCredentials, to distinguish them from errors of
// the calls that need the credentials.
type credentials struct {
	cache *sdk.CredentialsCache
}

// noCredentials is the error of fetching credentials; no call was sent.
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
