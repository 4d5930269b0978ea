package rest

import (
	"fmt"
	"net/url"
	"strings"
)

// BaseURL is an endpoint as settings have it with a slash at its end, and without those of
// the suffixes that it has: versions of an API, say. The error names the field endpoint.
func BaseURL(endpoint string, suffixes ...string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %q is no URL", endpoint)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("endpoint: %q must begin with http:// or https:// and have neither user, query nor fragment", u.Redacted())
	}
	path := strings.TrimRight(u.Path, "/")
	for _, s := range suffixes {
		path = strings.TrimSuffix(path, s)
	}
	u.Path = path + "/"
	return u, nil
}
