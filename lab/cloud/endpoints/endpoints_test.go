package endpoints

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/berthnet/berth/lab/cloud/spec"
)

func fetch(t *testing.T, url string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// Labs in one process are independent, and each instance has its own metadata service.
func TestLabsInOneProcessAreIndependent(t *testing.T) {
	var clouds []*Cloud
	seen := map[string]bool{}
	for seed := range uint64(3) {
		s := spec.Default()
		s.Seed = seed + 1
		cloud, err := Serve(s)
		if err != nil {
			t.Fatal(err)
		}
		defer cloud.Close()
		clouds = append(clouds, cloud)
		for _, node := range []string{"node-a", "node-b"} {
			id, err := fetch(t, cloud.IMDSURL(node)+"/latest/meta-data/instance-id")
			if err != nil || id != cloud.Instances.ID(node) || seen[id] {
				t.Errorf("lab %d: instance ID of %s = %q, %v; want a unique ID", seed, node, id, err)
			}
			seen[id] = true
			if cloud.IMDSURL(node) != cloud.IMDSURL(id) {
				t.Error("IMDSURL by name and by ID differ")
			}
		}
	}
	clouds[0].Close()
	if _, err := fetch(t, clouds[0].EC2URL); err == nil {
		t.Error("closed cloud still serves the EC2 API")
	}
	if url := clouds[0].IMDSURL("node-c"); url != "" {
		t.Errorf("IMDSURL of a closed cloud = %s, want none", url)
	}
	if body, err := fetch(t, clouds[1].EC2URL); err != nil || !strings.Contains(body, "MissingAuthenticationToken") {
		t.Errorf("EC2 reply of the other cloud = %q, %v; want MissingAuthenticationToken", body, err)
	}
}

func TestServeErrors(t *testing.T) {
	if _, err := Serve(spec.Spec{}); err == nil || !strings.Contains(err.Error(), "vpcs: expected at least one") {
		t.Errorf("Serve(empty spec) = %v, want error about vpcs", err)
	}
	cloud, err := Serve(spec.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer cloud.Close()
	if _, err := ServeOn(strings.TrimPrefix(cloud.EC2URL, "http://"), spec.Default()); err == nil {
		t.Error("ServeOn() of an address in use succeeded")
	}
	if _, err := cloud.ServeIMDS(anyPort, "node-z"); err == nil || !strings.Contains(err.Error(), `no instance "node-z"`) {
		t.Errorf("ServeIMDS(unknown instance) = %v, want error", err)
	}
}
