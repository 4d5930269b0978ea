package config

import (
	"fmt"
	"strings"
)

// imdsIPv6 is the instance metadata service's address in IPv6 (EC2 User Guide,
// "Access instance metadata for an EC2 instance").
const imdsIPv6 = "http://[fd00:ec2::254]"

// The values of imds-endpoint-mode.
const (
	imdsModeIPv4 = "ipv4"
	imdsModeIPv6 = "ipv6"
)

// imdsURL is where the metadata service is, empty for its IPv4 address. An
// endpoint outranks the mode, as in the AWS SDKs.
func imdsURL(endpoint, mode string) string {
	if endpoint == "" && mode == imdsModeIPv6 {
		return imdsIPv6
	}
	return endpoint
}

// ignoreEndpointsVar makes the AWS SDKs ignore the variables below, and what
// shared configuration files say of endpoints (AWS SDKs and Tools Reference
// Guide, "Service-specific endpoints").
const ignoreEndpointsVar = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"

// ignoreEndpoints takes the variables of endpoints from an environment that says
// that they are to be ignored.
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
