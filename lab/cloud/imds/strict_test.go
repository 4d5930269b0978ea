package imds_test

import (
	"net/http"
	"testing"
)

// What the service does not have is not found, and a token header counts even
// when it is empty.
func TestStrictPaths(t *testing.T) {
	cloud := serve(t, instant())
	base := cloud.IMDSURL("node-a")
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
		{"/latest/meta-data/instance-id", []string{tokenHeader, ""}, http.StatusUnauthorized},
		{"/latest/meta-data/instance-id", []string{tokenHeader, "made-up"}, http.StatusUnauthorized},
	} {
		got, body := get(t, http.MethodGet, base+tc.path, tc.header...)
		if got != tc.want {
			t.Errorf("%s with %q: %d, want %d: %.60q", tc.path, tc.header, got, tc.want, body)
		}
	}
	for _, ttl := range []string{"", "0", "21601"} {
		if got, _ := get(t, http.MethodPut, base+"/latest/api/token", ttlHeader, ttl); got != http.StatusBadRequest {
			t.Errorf("a token for %q seconds: %d", ttl, got)
		}
	}
}
