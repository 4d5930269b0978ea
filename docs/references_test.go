package docs

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages returns all hand-written documents by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{"../README.md": readPage(t, "../README.md"), "../CHANGELOG.md": readPage(t, "../CHANGELOG.md")}
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		if text := readPage(t, path); !strings.Contains(text, "<!-- Generated from ") {
			out[path] = text
		}
		return nil
	})
	if err != nil || len(out) < 20 {
		t.Fatalf("found %d pages: %v", len(out), err)
	}
	return out
}

// folder returns all pages of a folder as one text.
func folder(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	for path, text := range pages(t) {
		if filepath.Dir(path) == dir {
			out.WriteString(text)
		}
	}
	return out.String()
}

// named calls check with each match of a pattern in the pages. It fails if there are fewer matches than least.
func named(t *testing.T, pattern string, least int, check func(page string, found []string)) {
	t.Helper()
	re, count := regexp.MustCompile(pattern), 0
	for page, text := range pages(t) {
		for _, found := range re.FindAllStringSubmatch(text, -1) {
			count++
			check(page, found)
		}
	}
	if count < least {
		t.Errorf("only %d names were compared", count)
	}
}

// goFiles calls visit with each Go file below some folders, except tests.
func goFiles(t *testing.T, visit func(path string) error, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			return visit(path)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// others are flags in the documents that belong to other software, or to those of Berth's programs that have no settings
// page.
var others = map[string]string{
	"multus-conf-file": "Multus",
	"node-type":        "eksctl", "max-pods-per-node": "eksctl", "node-labels": "eksctl", "service-account-name": "eksctl", "permission-policy-arns": "eksctl", "config-file": "eksctl",
	"approve": "eksctl", "role-only": "eksctl", "role-name": "eksctl", "attach-policy-arn": "eksctl",
	"policy-name": "aws", "policy-document": "aws", "addon-name": "aws", "resolve-conflicts": "aws", "preserve": "aws", "configuration-values": "aws", "install": "helm",
	"tags": "aws", "format": "docker", "all": "skopeo", "server-side": "kubectl", "output": "aws",
	"node-ip": "kubelet", "configure-cloud-routes": "cloud controllers", "allocate-node-cidrs": "kube-controller-manager",
	"ignore-daemonsets": "kubectl", "delete-emptydir-data": "kubectl", "resources": "aws", "type": "kubectl", "field-selector": "kubectl", "replicas": "kubectl", "force-conflicts": "kubectl", "help": "all",
	"service-cluster-ip-range": "kube-apiserver", "enable-aggregator-routing": "kube-apiserver", "admission-control-config-file": "kube-apiserver",
	"create-namespace": "helm", "image": "kubectl", "annotations": "kubectl",
	"now": "systemctl", "previous": "kubectl", "filters": "aws", "network": "openstack", "ports": "openstack", "host": "openstack", "device-owner": "openstack", "long": "openstack", "from-literal": "kubectl", "for": "kubectl",
	"compat-calico": "Coil", "prefix": "etcdctl", "overwrite": "kubectl", "set": "helm", "values": "helm", "reuse-values": "helm", "reset-then-reuse-values": "helm", "take-ownership": "helm",
	"sign": "git", "branch": "git", "verify-tag": "gh", "title": "gh", "notes-file": "gh", "armor": "gpg", "detach-sign": "gpg",
	"preserve-digests": "skopeo", "raw": "skopeo", "digests": "ctr", "base-name": "ctr", "manifest": "krew",
	"pod-network-cidr": "kubeadm", "target-port": "kubectl", "silent": "curl", "max-time": "curl", "fail": "curl", "show-error": "curl", "location": "curl", "remote-name": "curl", "create-dirs": "curl", "output-dir": "curl",
	"check": "sha256sum", "ignore-missing": "sha256sum",
}

// variables are environment variables of tests, not settings of a program.
var variables = []string{"BERTH_FAILPOINTS", "BERTH_FAULT_SEED", "BERTH_RELEASE", "BERTH_SAMPLE", "BERTH_SOAK_EGRESS", "BERTH_TEST_BIN", "BERTH_VERDICTS"}

// Every flag and variable in the documents exists.
func TestSettingsExist(t *testing.T) {
	known := readPage(t, "reference/configuration.md") + readPage(t, "reference/operator-configuration.md") + readPage(t, "reference/egress-configuration.md")
	code := flagLiterals(t, "../cmd/vpclab", "../internal/ctl", "../bench")
	named(t, "(?:^|[\\s`(\"])--([a-z][a-z0-9-]*[a-z0-9])\\b", 100, func(page string, m []string) {
		if flag := m[1]; !strings.Contains(known, "`--"+flag+"`") && !code[flag] && others[flag] == "" {
			t.Errorf("%s: no program has the flag --%s", page, flag)
		}
	})
	named(t, `\bBERTH_[A-Z][A-Z_]*[A-Z]\b`, 5, func(page string, m []string) {
		if v := m[0]; !strings.Contains(known, "`"+v+"`") && !slices.Contains(variables, v) {
			t.Errorf("%s: no program reads %s", page, v)
		}
	})
}

// flagLiterals returns the string literals of programs whose flags are not in a table.
func flagLiterals(t *testing.T, dirs ...string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	quoted := regexp.MustCompile(`"([a-z][a-z0-9-]+)"`)
	goFiles(t, func(path string) error {
		data, err := os.ReadFile(path)
		for _, m := range quoted.FindAllStringSubmatch(string(data), -1) {
			out[m[1]] = true
		}
		return err
	}, dirs...)
	return out
}

// Every metric in the documents is served, with the labels that the documents use.
func TestMetricsExist(t *testing.T) {
	known := map[string]string{} // metric to its labels
	row := regexp.MustCompile("(?m)^\\| `(berth_[a-z0-9_]+)` \\| [a-z]+ \\| ([a-z_, ]*) \\|")
	for _, page := range []string{"reference/metrics.md", "reference/operator-metrics.md", "reference/egress-metrics.md"} {
		for _, m := range row.FindAllStringSubmatch(readPage(t, page), -1) {
			known[m[1]] = m[2]
		}
	}
	named(t, `\b(berth_[a-z0-9_]*[a-z0-9])(\{[^}]*\})?`, 15, func(page string, m []string) {
		labels, ok := known[m[1]]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(m[1], suffix); cut && !ok {
				labels, ok = known[base]
			}
		}
		if !ok && m[1] != "berth_operator" {
			t.Errorf("%s: no program serves %s", page, m[1])
		}
		for _, l := range regexp.MustCompile(`([a-z_]+)(?:=|!=|=~|!~)"`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(strings.Split(labels, ", "), l[1]) {
				t.Errorf("%s: %s has no label %s", page, m[1], l[1])
			}
		}
	})
}

// Every field in the documents exists in a kind of Berth's.
func TestFieldsExist(t *testing.T) {
	known := map[string]bool{"spec.providerID": true, "spec.nodeName": true, "spec.hostNetwork": true, "status.phase": true, "status.podIP": true, "status.podIPs": true} // fields of Nodes and Pods
	for _, kind := range []string{"nodenetwork", "addresspool", "addressblock", "blockrequest", "vpc", "podnic", "egress", "egressclient"} {
		section := ""
		for line := range strings.Lines(readPage(t, "reference/"+kind+".md")) {
			if s, ok := strings.CutPrefix(line, "## s"); ok {
				section = "s" + strings.TrimSpace(s)
				known[section] = true
			}
			if m := regexp.MustCompile("^\\| `([a-zA-Z0-9]+)").FindStringSubmatch(line); m != nil {
				known[section+"."+m[1]] = true
			}
		}
	}
	named(t, "`((?:spec|status)\\.[a-zA-Z0-9.]*[a-zA-Z0-9])", 30, func(page string, m []string) {
		if !known[m[1]] {
			t.Errorf("%s: no kind has a field %s", page, m[1])
		}
	})
}

// Pages for users name no test. The test for a statement is named in a comment behind it.
func TestUserPagesNameNoTests(t *testing.T) {
	comment, test := regexp.MustCompile(`(?s)<!--.*?-->`), regexp.MustCompile("`Test[A-Z][A-Za-z0-9_/]*`")
	for page, text := range pages(t) {
		if page == "../CHANGELOG.md" || filepath.Dir(page) == "contribute" {
			continue
		}
		for _, name := range test.FindAllString(comment.ReplaceAllString(text, ""), -1) {
			t.Errorf("%s names %s, want it in a comment: <!-- test: %s -->", page, name, strings.Trim(name, "`"))
		}
	}
}

// Every figure in the documents is measured by `make bench`.
func TestFiguresExist(t *testing.T) {
	data, err := os.ReadFile("../bench/results.json")
	if err != nil {
		t.Fatal(err)
	}
	var results []struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(data, &results); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range results {
		known[r.Name] = true
	}
	named(t, "(?:[Bb]ench|[Ff]igures?)\\s((?:`[a-z0-9-]+`(?:,\\s|\\sand\\s)?)+)", 5, func(page string, m []string) {
		for _, figure := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(m[1], -1) {
			if !known[figure[1]] {
				t.Errorf("%s: bench/results.json has no figure %s", page, figure[1])
			}
		}
	})
}

// A page has one subject. Generated pages are as long as what they are generated from.
func TestPagesAreShort(t *testing.T) {
	const most = 300
	for page, text := range pages(t) {
		if lines := strings.Count(text, "\n"); lines > most && page != "../CHANGELOG.md" {
			t.Errorf("%s has %d lines, want at most %d: split it by subject", page, lines, most)
		}
	}
}

// docs/README.md, which is the navigation of the site, links to each page, and docs/alerts/README.md to those of alerts.
func TestIndexListsPages(t *testing.T) {
	index := readPage(t, "README.md")
	generated, err := filepath.Glob("reference/*.md")
	if err != nil || len(generated) < 10 {
		t.Fatalf("%d pages in docs/reference: %v", len(generated), err)
	}
	for _, page := range append(slices.Collect(maps.Keys(pages(t))), generated...) {
		alert := filepath.Dir(page) == "alerts" && page != "alerts/README.md" // TestEveryAlertHasRunbook
		if !alert && page != "README.md" && !strings.HasPrefix(page, "../") && !strings.Contains(index, "]("+page+")") {
			t.Errorf("docs/README.md does not link to %s", page)
		}
	}
}

// Every package has a row in the map in docs/contribute/packages.md, or is named in the row of a package around it.
func TestPackagesAreOnMap(t *testing.T) {
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|.*$").FindAllStringSubmatch(readPage(t, "contribute/packages.md"), -1) {
		for _, p := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[1], -1) {
			if rows[p[1]] == "" { // the map comes before the other tables
				rows[p[1]] = m[0]
			}
		}
	}
	err := filepath.WalkDir("../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if d.Name() == "testdata" {
			return fs.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(path, "*.go"))
		name, _ := filepath.Rel("..", path)
		if err != nil || len(files) == 0 || rows[name] != "" {
			return err
		}
		for around := filepath.Dir(name); around != "."; around = filepath.Dir(around) {
			if strings.Contains(rows[around], "`"+strings.TrimPrefix(name, around+"/")+"`") {
				return nil
			}
		}
		t.Errorf("docs/contribute/packages.md: the map has no row for %s, and no row of a package around it names it", name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
