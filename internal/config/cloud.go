package config

import (
	"fmt"
	"strings"
)

// imdsIPv6 is the instance metadata service's address in IPv6 (EC2 User Guide,
// "Access instance metadata for an EC2 instance").
const imdsIPv6 = "http://[fd00:ec2::254]"

// Values of imds-endpoint-mode.
const (
	imdsModeIPv4 = "ipv4"
	imdsModeIPv6 = "ipv6"
)

// CloudSettings are the settings of every program that calls EC2.
type CloudSettings struct {
	EC2Endpoint  string
	IMDSEndpoint string
	IMDSMode     string // resolved into IMDSEndpoint
	Region       string
}

func (c *CloudSettings) rows() []Setting {
	return []Setting{
		{Flag: "region", Env: []string{"AWS_REGION", "AWS_DEFAULT_REGION"}, parse: text(&c.Region),
			Doc: "AWS region. Default: the instance's."},
		{Flag: "ec2-endpoint", Env: []string{"AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL"}, parse: checked(&c.EC2Endpoint, orEmpty(httpURL)),
			Doc: "URL of the EC2 API. Default: the region's endpoint. AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true disables the AWS variables."},
		{Flag: "imds-endpoint", Env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT"}, parse: checked(&c.IMDSEndpoint, orEmpty(httpURL)),
			Doc: "URL of the instance metadata service. Default: http://169.254.169.254, or http://[fd00:ec2::254] with imds-endpoint-mode=ipv6."},
		{Flag: "imds-endpoint-mode", Env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"}, Default: imdsModeIPv4, parse: oneOf(&c.IMDSMode, imdsModeIPv4, imdsModeIPv6),
			Doc: "Protocol for the metadata service if imds-endpoint is not set: ipv4 or ipv6."},
	}
}

// finish resolves the mode into the endpoint, which is empty for the metadata service's IPv4 address. As in the AWS SDKs,
// an explicit endpoint takes precedence over the mode.
func (c *CloudSettings) finish() {
	if c.IMDSEndpoint == "" && c.IMDSMode == imdsModeIPv6 {
		c.IMDSEndpoint = imdsIPv6
	}
}

// ignoreEndpointsVar makes the AWS SDKs ignore the variables below and the endpoints of shared
// configuration files (AWS SDKs and Tools Reference Guide, "Service-specific endpoints").
const ignoreEndpointsVar = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"

// ignoreEndpoints removes endpoint variables from an environment that disables them.
func ignoreEndpoints(env map[string]string) error {
	switch v := env[ignoreEndpointsVar]; {
	case v == "" || strings.EqualFold(v, "false"):
		return nil
	case !strings.EqualFold(v, "true"):
		return fmt.Errorf("environment variable %s: %q: expected true or false", ignoreEndpointsVar, v)
	}
	for name := range env {
		if strings.HasPrefix(name, "AWS_ENDPOINT_URL") {
			delete(env, name)
		}
	}
	return nil
}
