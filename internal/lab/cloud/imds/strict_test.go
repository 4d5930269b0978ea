package imds_test

import (
	"io"
	"net/http"
	"testing"
)

// What the service does not have is not found, and a token header counts even
// when it is empty.
func TestStrictPaths(t *testing.T) {
	lab := serve(t, instant())
	base := lab.IMDSURL("node-a")
	for _, tc := range []struct {
		path   string
		header []string
		want   int
	}{
		{"/latest/meta-data/instance-id", nil, http.StatusOK},
		{"/latest/meta-data/instance-id/", nil, http.StatusNotFound},
		{"/latest/meta-data", nil, http.StatusOK},
		{"/latest/meta-data/", nil, http.StatusOK},
		{"/latest/meta-data/placement/", nil, http.StatusOK},
		{"/2021-03-23/meta-data/instance-id", nil, http.StatusOK},
		{"/2021-99-99/meta-data/instance-id", nil, http.StatusNotFound},
		{"/aaaaaaaaaa/meta-data/instance-id", nil, http.StatusNotFound},
		{"/2031-01-01/", nil, http.StatusNotFound},
		{"/latest/meta-data/instance-id", []string{""}, http.StatusUnauthorized},
		{"/latest/meta-data/instance-id", []string{"made-up"}, http.StatusUnauthorized},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+tc.path, http.NoBody)
		ok(t, err)
		if tc.header != nil {
			req.Header["X-Aws-Ec2-Metadata-Token"] = tc.header
		}
		resp, err := http.DefaultClient.Do(req)
		ok(t, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("%s with token %q: %s, want %d: %.60q", tc.path, tc.header, resp.Status, tc.want, body)
		}
	}
	for _, ttl := range []string{"", "0", "21601"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/latest/api/token", http.NoBody)
		ok(t, err)
		req.Header["X-Aws-Ec2-Metadata-Token-Ttl-Seconds"] = []string{ttl}
		resp, err := http.DefaultClient.Do(req)
		ok(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("a token for %q seconds: %s", ttl, resp.Status)
		}
	}
}
