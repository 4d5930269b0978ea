package kube

import (
	"os"
	"testing"
)

func assets(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run make test, or set it to what hack/kubebox.sh prints")
	}
	return dir
}

func TestControlPlane(t *testing.T) {
	c, err := Start(t.Context(), Options{Assets: assets(t), Dir: t.TempDir(), CRDs: os.DirFS("../../../deploy/crds")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
}
