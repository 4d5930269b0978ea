package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Release is an installation of the chart.
type Release struct {
	Name      string         // "berth" if empty
	Namespace string         // "kube-system" if empty
	Values    map[string]any // override chart/values.yaml
	// Kubernetes is the version of the cluster; newest if empty.
	Kubernetes string

	chart      *chart.Chart          // that of a Package; the embedded one if nil
	appVersion string                // of the chart; its own if empty
	cluster    engine.ClientProvider // what the chart may look up; nothing if nil
}

// newest is the version of Kubernetes that Berth is built with (go.mod).
const newest = "v1.37.1"

// The modes of the chart.
const (
	NodeMode     = "node"     // ENIs, by each node's own berthd
	OperatorMode = "operator" // ENIs, by berth-operator for all nodes
	PoolMode     = "pool"     // blocks of address pools, by berth-operator
	PortMode     = "port"     // ports of VPCs, by berth-operator
	EgressMode   = "egress"   // Egresses only: berth is chained after the plugins of another network
)

// InMode returns a release with default values except for the mode and the cluster's name.
func InMode(mode, cluster string) Release {
	return Release{Values: map[string]any{"mode": mode, "clusterName": cluster}}
}

// Render returns the objects that `helm install` sends to the API server for a release, in Helm's order: kinds and
// accounts before the objects that use them. Like Helm, it fails on values that the chart's schema rejects, with an error
// that names them. Results are cached; each caller gets its own copy.
func Render(r Release) (Objects, error) {
	key, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("values of the chart: %w", err)
	}
	made, _ := rendered.LoadOrStore(string(key), sync.OnceValues(func() (Objects, error) { return r.render() }))
	objects, err := made.(func() (Objects, error))()
	return objects.copy(), err
}

// rendered caches a renderer for each release, by the release in JSON.
var rendered sync.Map

// Notes returns the notes that `helm install` prints for a release.
func Notes(r Release) (string, error) {
	texts, err := r.execute()
	return texts[path.Join("berth", "templates", notes)], err
}

const notes = "NOTES.txt"

func (r Release) render() (Objects, error) {
	texts, err := r.execute()
	if err != nil {
		return nil, err
	}
	var objects Objects
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if path.Base(name) == notes {
			continue
		}
		of, err := read(texts[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		objects = append(objects, of...)
	}
	objects.sort()
	return objects, nil
}

// execute executes the templates and returns the results by path.
func (r Release) execute() (map[string]string, error) {
	c := r.chart
	if c == nil {
		var err error
		if c, err = load(); err != nil {
			return nil, fmt.Errorf("load the chart: %w", err)
		}
	}
	if r.appVersion != "" {
		released, metadata := *c, *c.Metadata
		metadata.AppVersion, released.Metadata = r.appVersion, &metadata
		c = &released
	}
	options := common.ReleaseOptions{
		Name: cmp.Or(r.Name, "berth"), Namespace: cmp.Or(r.Namespace, "kube-system"), Revision: 1, IsInstall: true,
	}
	capabilities := common.DefaultCapabilities.Copy()
	version, err := common.ParseKubeVersion(cmp.Or(r.Kubernetes, newest))
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes: %w", err)
	}
	capabilities.KubeVersion = *version
	values, err := util.ToRenderValues(c, r.Values, options, capabilities)
	if err != nil {
		return nil, fmt.Errorf("values of the chart: %w", err)
	}
	var texts map[string]string
	if r.cluster == nil {
		texts, err = engine.Engine{}.RenderWithContext(context.Background(), c, values)
	} else {
		texts, err = engine.RenderWithClientProvider(c, values, r.cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	return texts, nil
}

var load = sync.OnceValues(func() (*chart.Chart, error) {
	buffered, err := embedded()
	if err != nil {
		return nil, err
	}
	return loader.LoadFiles(buffered)
})

// embedded returns a copy of the chart's files in alphabetical order.
func embedded() (buffered []*archive.BufferedFile, err error) {
	err = fs.WalkDir(Chart(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(Chart(), name)
		buffered = append(buffered, &archive.BufferedFile{Name: name, Data: data})
		return err
	})
	return buffered, err
}

// read parses the objects in a YAML text.
func read(text string) (Objects, error) {
	var objects Objects
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := newObject()
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 { // documents with comments only
			objects = append(objects, o)
		}
	}
}
