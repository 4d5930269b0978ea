package aws

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go/logging"

	"github.com/berthnet/berth/internal/version"
)

// DefaultMetadataTimeout is the default of Options.MetadataTimeout.
const DefaultMetadataTimeout = 30 * time.Second

// Options configure New and NewMetadata. The zero value works on an EC2 instance, or in a pod with an
// IAM role.
type Options struct {
	// Region is the AWS region. If empty, it is taken from the environment, the shared configuration or the
	// instance metadata service.
	Region string
	// EC2Endpoint is the URL of the EC2 API, such as that of a VPC endpoint or a lab; the region's public
	// endpoint if empty.
	EC2Endpoint string
	// IMDSEndpoint is the URL of the instance metadata service; http://169.254.169.254 if empty.
	IMDSEndpoint string
	// Credentials sign the calls. If nil, the SDK's default chain is used: environment, shared files, web
	// identity (IRSA), container credentials (EKS Pod Identity), instance role.
	Credentials sdk.CredentialsProvider
	// HTTPClient sends the calls to EC2 and to the metadata service. If nil, it is the SDK's own with short
	// connection timeouts.
	HTTPClient sdk.HTTPClient
	// MetadataTimeout bounds how long Identity waits for the metadata service; DefaultMetadataTimeout if 0.
	MetadataTimeout time.Duration
	// Logger is slog.Default if not set.
	Logger *slog.Logger
	// UserAgent is the program's name in the User-Agent header; "berth" if empty.
	UserAgent string
}

func (o Options) withDefaults() Options {
	if o.HTTPClient == nil {
		o.HTTPClient = awshttp.NewBuildableClient().
			WithDialerOptions(func(d *net.Dialer) { d.Timeout = 5 * time.Second }).
			WithTransportOptions(func(t *http.Transport) { t.TLSHandshakeTimeout, t.Proxy = 5*time.Second, direct })
	}
	if o.MetadataTimeout <= 0 {
		o.MetadataTimeout = DefaultMetadataTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.UserAgent == "" {
		o.UserAgent = "berth"
	}
	return o
}

// direct uses the proxy of the environment and rejects redirects. EC2 and the metadata service do not
// redirect, and following a redirect would send the request to another host.
func direct(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, fmt.Errorf("redirected to %s, which is not followed", r.URL.Host)
	}
	return http.ProxyFromEnvironment(r)
}

// sdkLogger logs the messages of the SDK.
func (o Options) sdkLogger() logging.Logger {
	return logging.LoggerFunc(func(class logging.Classification, format string, v ...any) {
		level := slog.LevelDebug
		if class == logging.Warn {
			level = slog.LevelWarn
		}
		o.Logger.Log(context.Background(), level, "AWS SDK", "text", fmt.Sprintf(format, v...))
	})
}

// agent returns the name and version for the User-Agent header.
func (o Options) agent() (name, value string) { return o.UserAgent, version.String() }
