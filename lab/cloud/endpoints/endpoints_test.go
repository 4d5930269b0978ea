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

// Labs in one process are strangers to each other, and each instance has a
// metadata service of its own.
func TestManyLabs(t *testing.T) {
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
				t.Errorf("lab %d, %s is %q, %v", seed, node, id, err)
			}
			seen[id] = true
			if cloud.IMDSURL(node) != cloud.IMDSURL(id) {
				t.Error("the URL by name is not the URL by ID")
			}
		}
	}
	clouds[0].Close()
	if _, err := fetch(t, clouds[0].EC2URL); err == nil {
		t.Error("a closed lab answers")
	}
	if url := clouds[0].IMDSURL("node-c"); url != "" {
		t.Errorf("a closed lab serves metadata at %s", url)
	}
	if body, err := fetch(t, clouds[1].EC2URL); err != nil || !strings.Contains(body, "MissingAuthenticationToken") {
		t.Errorf("%q, %v", body, err)
	}
}

func TestServeMistakes(t *testing.T) {
	if _, err := Serve(spec.Spec{}); err == nil || !strings.Contains(err.Error(), "vpcs: expected at least one") {
		t.Error(err)
	}
	cloud, err := Serve(spec.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer cloud.Close()
	if _, err := ServeOn(strings.TrimPrefix(cloud.EC2URL, "http://"), spec.Default()); err == nil {
		t.Error("two clouds on one port")
	}
	if _, err := cloud.ServeIMDS(anyPort, "node-z"); err == nil || !strings.Contains(err.Error(), `no instance "node-z"`) {
		t.Error(err)
	}
}
