package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// start runs "vpclab serve" and returns the settings it prints, and a function
// that ends it as a signal would.
func start(t *testing.T, args ...string) (env map[string]string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	root := newRoot()
	root.SetOut(w)
	root.SetArgs(append([]string{"serve", "--ec2-addr", "127.0.0.1:0", "--imds-addr", "127.0.0.1:0"}, args...))
	ended := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		_ = w.Close()
		ended <- err
	}()
	env = map[string]string{}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if kv, ok := strings.CutPrefix(lines.Text(), "export "); ok {
			k, v, _ := strings.Cut(kv, "=")
			env[k] = v
		}
		if strings.HasPrefix(lines.Text(), "Try:") {
			break
		}
	}
	return env, func() error { cancel(); return <-ended }
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestServe(t *testing.T) {
	env, stop := start(t, "--imds-instance", "node-b")
	if code, _ := fetch(t, env["AWS_ENDPOINT_URL_EC2"]); code != http.StatusForbidden {
		t.Errorf("an unsigned call to the EC2 API: %d", code)
	}
	if _, zone := fetch(t, env["AWS_EC2_METADATA_SERVICE_ENDPOINT"]+"/latest/meta-data/placement/availability-zone"); zone != "lab-1b" {
		t.Errorf("the metadata service speaks for an instance in %q", zone)
	}
	if env["AWS_REGION"] != "lab-1" || env["AWS_ACCESS_KEY_ID"] == "" || env["AWS_SECRET_ACCESS_KEY"] == "" {
		t.Errorf("prints %v", env)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestServeMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(file, []byte("vpcs: [{name: lab, cidr: 10.0.0.0/16}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--spec", file}, "vpcs[0].cidr: unknown field"},
		{[]string{"--spec", "/no/such/file"}, "no such file"},
		{[]string{"--imds-instance", "node-z"}, `no instance "node-z"`},
		{[]string{"--ec2-addr", "nowhere"}, "serve the EC2 API"},
	} {
		_, stop := start(t, tc.args...)
		if err := stop(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
		}
	}
}
