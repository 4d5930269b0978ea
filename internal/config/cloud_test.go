package config

import (
	"strings"
	"testing"
)

// Both programs read the endpoints of the AWS SDKs from the environment as the SDKs do.
func TestEndpointsAsTheSDKsTakeThem(t *testing.T) {
	const lab, v6 = "http://127.0.0.1:9000", "http://[fd00:ec2::254]"
	for name, tt := range map[string]struct {
		args, env []string
		ec2, imds string
	}{
		"nothing":                       {},
		"a service's endpoint":          {env: []string{"AWS_ENDPOINT_URL_EC2=" + lab}, ec2: lab},
		"everything's endpoint":         {env: []string{"AWS_ENDPOINT_URL=" + lab}, ec2: lab},
		"ignored":                       {env: []string{"AWS_ENDPOINT_URL_EC2=" + lab, "AWS_ENDPOINT_URL=" + lab, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=True"}},
		"not ignored":                   {env: []string{"AWS_ENDPOINT_URL_EC2=" + lab, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false"}, ec2: lab},
		"ignored, but for Berth's own":  {env: []string{"BERTH_EC2_ENDPOINT=" + lab, "AWS_ENDPOINT_URL=http://other", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true"}, ec2: lab},
		"ignored, but for a flag":       {args: []string{"--ec2-endpoint=" + lab}, env: []string{"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true"}, ec2: lab},
		"the metadata's is not ignored": {env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT=" + lab, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true"}, imds: lab},
		"metadata by IPv6":              {env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6"}, imds: v6},
		"metadata by IPv4":              {env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv4"}},
		"an endpoint outranks the mode": {env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6", "AWS_EC2_METADATA_SERVICE_ENDPOINT=" + lab}, imds: lab},
		"by flag":                       {args: []string{"--imds-endpoint-mode=ipv6"}, imds: v6},
	} {
		c, err := load(t, tt.args, tt.env)
		if err != nil || c.EC2Endpoint != tt.ec2 || c.IMDSEndpoint != tt.imds {
			t.Errorf("%s: EC2 at %q, metadata at %q, %v", name, c.EC2Endpoint, c.IMDSEndpoint, err)
		}
		if o, err := loadOperator(t, tt.args, tt.env); err != nil || o.EC2Endpoint != tt.ec2 || o.IMDSEndpoint != tt.imds {
			t.Errorf("%s: the operator's EC2 at %q, metadata at %q, %v", name, o.EC2Endpoint, o.IMDSEndpoint, err)
		}
	}
	for _, env := range []string{"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=1", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv5"} {
		name, _, _ := strings.Cut(env, "=")
		_, err := load(t, nil, []string{env})
		says(t, err, name)
	}
}
