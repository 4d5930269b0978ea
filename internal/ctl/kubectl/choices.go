package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
)

// choices are the files with all user settings of a cluster, by path: values.yaml, objects/*.yaml and nodes/*.yaml.
// kubectl applies a folder's files in the order of their names, but none of its subfolders.
type choices map[string][]byte

const (
	valuesFile  = "values.yaml"
	objectsDir  = "objects/"
	nodesDir    = "nodes/"
	allowedName = "berthd-allowed" // the ConfigMap with what berthd may set
)

// allowedIfRemoved has the value that the admission policy uses for each key that berthd-allowed lacks: "" for lists.
var allowedIfRemoved = map[string]string{"addresses": "256"}

// chosenKinds are the kinds that only users write.
var chosenKinds = []struct{ kind, file, path string }{
	{"AddressPool", "addresspools", poolsPath},
	{"Egress", "egresses", egressesPath},
	{"NICPolicy", "nicpolicies", berthPath + "/nicpolicies"},
	{"NodeNetworkTemplate", "nodenetworktemplates", berthPath + "/nodenetworktemplates"},
	{"VPC", "vpcs", vpcsPath},
}

// choices reads all user settings. It fails if a part cannot be read.
func (a *api) choices(ctx context.Context, s *settings) (choices, error) {
	values, err := s.text()
	if err != nil {
		return nil, err
	}
	files, needed := map[string][]object{}, map[string]bool{} // namespaces of the objects
	for _, k := range chosenKinds {
		for _, o := range list[object](ctx, a, k.kind+" objects", k.path, nil) {
			meta := part(o, "metadata")
			if meta["deletionTimestamp"] != nil || meta["ownerReferences"] != nil {
				continue
			}
			delete(o, "status")
			o["apiVersion"], o["kind"], o["metadata"] = v1alpha1.GroupVersion.String(), k.kind, keptMeta(meta)
			files[objectsDir+k.file] = append(files[objectsDir+k.file], o)
			if ns := text(meta, "namespace"); ns != "" {
				needed[ns] = true
			}
		}
	}
	changed, err := allowed(ctx, a, s)
	if err != nil {
		return nil, err
	}
	files[objectsDir+"configmaps"] = changed
	files[objectsDir+"0-namespaces"] = chosenNamespaces(ctx, a, needed) // sorts before the objects in them
	for _, o := range list[object](ctx, a, "NodeNetworks", networksPath, nil) {
		if eni := chosenENI(o); len(eni) > 0 {
			files[nodesDir+"nodenetworks"] = append(files[nodesDir+"nodenetworks"], object{
				"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeNetwork",
				"metadata": object{"name": text(part(o, "metadata"), "name")}, "spec": object{"eni": eni},
			})
		}
	}
	if err := a.err(); err != nil {
		return nil, err
	}
	out := choices{valuesFile: []byte(values)}
	for name, objects := range files {
		if len(objects) == 0 {
			continue
		}
		slices.SortFunc(objects, func(a, b object) int { return strings.Compare(idOf(a), idOf(b)) })
		var b bytes.Buffer
		for i, o := range objects {
			text, err := yaml.Marshal(o)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", idOf(o), err)
			}
			if i > 0 {
				b.WriteString("---\n")
			}
			b.Write(text)
		}
		out[name+".yaml"] = b.Bytes()
	}
	return out, nil
}

// keptMeta returns the metadata for a new cluster.
func keptMeta(meta object) object {
	out := object{}
	for _, name := range []string{"name", "namespace", "labels", "annotations"} {
		if meta[name] != nil {
			out[name] = meta[name]
		}
	}
	if a := part(out, "annotations"); a != nil {
		delete(a, "kubectl.kubernetes.io/last-applied-configuration")
		if len(a) == 0 {
			delete(out, "annotations")
		}
	}
	return out
}

// allowed returns the ConfigMap berthd-allowed if somebody has changed it. Otherwise the chart creates it from the values.
func allowed(ctx context.Context, a *api, s *settings) ([]object, error) {
	live := one[object](ctx, a, "ConfigMap "+allowedName, namespacesPath+join(s.namespace, "configmaps", allowedName)).Value
	if live == nil {
		return nil, nil
	}
	rendered, err := decodeObjects([]byte(s.release.Manifest))
	if err != nil {
		return nil, fmt.Errorf("manifest of release %s: %w", s.release.Name, err)
	}
	i := slices.IndexFunc(rendered, func(o object) bool {
		return o["kind"] == "ConfigMap" && text(part(o, "metadata"), "name") == allowedName
	})
	data := part(*live, "data")
	if i >= 0 {
		if data = changedAllowed(part(rendered[i], "data"), data); data == nil {
			return nil, nil
		}
	}
	// Without labels and annotations, which name the release that owns the object.
	return []object{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": allowedName, "namespace": s.namespace}, "data": data}}, nil
}

// changedAllowed returns the data of berthd-allowed for a cluster in which the chart has created it, or nil if nobody has
// changed it. kubectl apply would keep the chart's value of a key that the data lacks.
func changedAllowed(rendered, live object) object {
	c := comparison{exact: true}
	if c.compare("data", rendered, live); len(c.found) == 0 {
		return nil
	}
	out := object{}
	for name := range rendered {
		out[name] = allowedIfRemoved[name]
	}
	maps.Copy(out, live)
	return out
}

// chosenNamespaces returns the Namespaces that other objects need, or that have annotations or labels of Berth, without
// everything else that they have.
func chosenNamespaces(ctx context.Context, a *api, needed map[string]bool) (out []object) {
	for _, o := range list[object](ctx, a, "Namespaces", namespacesPath, nil) {
		meta := object{"name": text(part(o, "metadata"), "name")}
		for _, field := range []string{"labels", "annotations"} {
			m := part(o, "metadata", field)
			maps.DeleteFunc(m, func(key string, _ any) bool { return !berthKey(key) })
			if len(m) > 0 {
				meta[field] = m
			}
		}
		if len(meta) > 1 || needed[text(meta, "name")] {
			out = append(out, object{"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
		}
	}
	return out
}

// berthKey reports whether Berth reads a label or annotation.
func berthKey(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == v1alpha1.GroupVersion.Group || strings.HasSuffix(domain, "."+v1alpha1.GroupVersion.Group) || strings.HasPrefix(key, v1alpha1.AnnotationCoilEgressPrefix)
}

// chosenENI returns the fields of a NodeNetwork's spec.eni that were not set by Berth.
func chosenENI(o object) object {
	out, eni := object{}, part(o, "spec", "eni")
	for _, e := range managedFields(o) {
		if byBerth(e) {
			continue
		}
		for f := range part(fieldsOf(e), "f:spec", "f:eni") {
			if name, ok := strings.CutPrefix(f, "f:"); ok && eni[name] != nil {
				out[name] = eni[name]
			}
		}
	}
	return out
}

// readChoices reads a folder that write has created.
func readChoices(dir string) (choices, error) {
	out := choices{}
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !isChoice(name) {
			return fmt.Errorf("%s: expected only what --output-dir writes: %s, %s*.yaml and %s*.yaml", filepath.Join(dir, name), valuesFile, objectsDir, nodesDir)
		}
		out[name], err = fs.ReadFile(root, name)
		return err
	})
	if err == nil && len(out) > 0 && out[valuesFile] == nil {
		err = fmt.Errorf("%s: no %s, expected a folder that --output-dir wrote", dir, valuesFile)
	}
	return out, err
}

func isChoice(name string) bool {
	return name == valuesFile || path.Ext(name) == ".yaml" && (path.Dir(name)+"/" == objectsDir || path.Dir(name)+"/" == nodesDir)
}

// write creates the folder dir completely or not at all. With force, it replaces a folder that contains only such files.
func (c choices) write(dir string, force bool) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		dir = target
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case len(entries) > 0 && !force:
		return fmt.Errorf("%s is not empty: name another folder, or give --force to replace a folder that --output-dir wrote", dir)
	case len(entries) > 0:
		if _, err := readChoices(dir); err != nil {
			return err
		}
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".berth-settings-")
	if err != nil {
		return err
	}
	restored := true
	defer func() {
		if restored { // otherwise it is the only copy of the folder
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	made := filepath.Join(temp, "new")
	for _, name := range slices.Sorted(maps.Keys(c)) {
		file := filepath.Join(made, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, c[name], 0o600); err != nil {
			return err
		}
	}
	old := filepath.Join(temp, "old")
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(made, dir); err != nil {
		if back := os.Rename(old, dir); back != nil && !errors.Is(back, fs.ErrNotExist) {
			restored = false
			return errors.Join(err, fmt.Errorf("restore the folder from %s: %w", old, back))
		}
		return err
	}
	return nil
}

// compare returns the differences between the cluster's and saved settings.
func (c choices) compare(now choices) ([]difference, error) {
	var out []difference
	saved, err := c.byID()
	if err != nil {
		return nil, err
	}
	found, err := now.byID()
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for id := range saved {
		ids[id] = true
	}
	for id := range found {
		ids[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		d := comparison{object: id, exact: true}
		switch {
		case found[id] == nil:
			d.found = []difference{{id, "", "in the folder, but not in the cluster"}}
		case saved[id] == nil:
			d.found = []difference{{id, "", "in the cluster, but not in the folder"}}
		case id == chartValues:
			d.compareValues("", saved[id], found[id])
		default:
			d.compare("", saved[id], found[id])
		}
		out = append(out, d.found...)
	}
	return out, nil
}

// chartValues names the chart values in messages.
const chartValues = "chart values"

// compareValues adds the differences between chart values. Unlike in objects, false, null and empty lists replace defaults.
func (c *comparison) compareValues(field string, want, got object) {
	names := slices.AppendSeq(slices.Collect(maps.Keys(want)), maps.Keys(got))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		at := below(field, name)
		w, given := want[name]
		g, found := got[name]
		ofWant, isObject := w.(object)
		ofGot, isToo := g.(object)
		switch {
		case isObject && isToo:
			c.compareValues(at, ofWant, ofGot)
		case !found:
			c.found = append(c.found, difference{c.object, at, "missing, expected " + brief(w)})
		case !given:
			c.found = append(c.found, difference{c.object, at, brief(g) + ", expected to be unset"})
		case !reflect.DeepEqual(w, g):
			c.found = append(c.found, difference{c.object, at, brief(g) + ", expected " + brief(w)})
		}
	}
}

// byID returns the values and objects of all files.
func (c choices) byID() (map[string]object, error) {
	out := map[string]object{}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if name == valuesFile {
			values := object{}
			if err := yaml.Unmarshal(c[name], &values); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out[chartValues] = values
			continue
		}
		objects, err := decodeObjects(c[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, o := range objects {
			out[idOf(o)] = o
		}
	}
	return out, nil
}
