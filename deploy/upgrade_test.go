package deploy

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

// installed is a cluster in which the chart finds DaemonSets.
type installed struct{ dynamic.Interface }

func (c installed) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	return c.Resource(gv.WithResource(strings.ToLower(kind) + "s")), true, err
}

// running is a cluster with the DaemonSet that a release of a version would install.
func running(t *testing.T, version string) installed {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects, err := Release{Values: InMode(NodeMode, "test").Values, appVersion: version}.render()
	if err != nil {
		t.Fatal(err)
	}
	var daemons []runtime.Object
	for _, o := range objects.Of("DaemonSet") {
		daemons = append(daemons, o)
	}
	return installed{fake.NewSimpleDynamicClient(scheme, daemons...)}
}

// A version follows its neighbours only, up and down, unless somebody forces it.
func TestUpgradesKeepToMinorVersions(t *testing.T) {
	for _, tt := range []struct {
		runs, chart string
		allowed     bool
	}{
		{"v1.2.3", "v1.2.3", true},
		{"v1.2.3", "v1.2.9", true},
		{"v1.2.3", "v1.3.0", true},
		{"v1.2.3", "v1.4.0", false},
		{"v1.2.3", "v1.12.0", false},
		{"v1.3.0", "v1.2.9", true},
		{"v1.4.0", "v1.2.9", false},
		{"v0.9.1", "v1.0.0", true},
		{"v0.9.1", "v1.1.0", false},
		{"v1.0.2", "v0.9.1", true},
		{"v1.1.0", "v0.9.1", false},
		{"v1.0.0", "v3.0.0", false},
		{"1.2.0", "v1.3.0-rc.1", true},
		{"v1.2.0-4-g1234567-dirty", "v1.4.0", false},
		{"dev", "v1.4.0", true},
		{"v1.2.0", "dev", true},
	} {
		for _, force := range []bool{false, true} {
			values := map[string]any{"mode": NodeMode, "clusterName": "test", "upgrade": map[string]any{"skipMinorVersions": force}}
			_, err := Release{Values: values, appVersion: tt.chart, cluster: running(t, tt.runs)}.render()
			switch refused := err != nil && strings.Contains(err.Error(), "Berth "+tt.runs+" runs in the namespace kube-system"); {
			case tt.allowed || force:
				if err != nil {
					t.Errorf("%s to %s, forced = %v: error = %v, want none", tt.runs, tt.chart, force, err)
				}
			case !refused || !strings.Contains(err.Error(), "upgrade.skipMinorVersions=true"):
				t.Errorf("%s to %s: error = %v, want one that names both versions and the value", tt.runs, tt.chart, err)
			}
		}
	}
}

// A first installation, and one beside a release in another namespace, are not compared with anything.
func TestFirstInstallationHasNoVersionToFollow(t *testing.T) {
	values := InMode(NodeMode, "test").Values
	nothing := installed{fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "apps", Version: "v1", Resource: "daemonsets"}: "DaemonSetList",
	})}
	for name, r := range map[string]Release{
		"empty":             {Values: values, appVersion: "v1.4.0", cluster: nothing},
		"another namespace": {Namespace: "other", Values: values, appVersion: "v1.4.0", cluster: running(t, "v1.2.0")},
	} {
		if _, err := r.render(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
