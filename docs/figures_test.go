package docs

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// figure is a number or version of a page and its source in the tree. Both patterns have one group.
type figure struct {
	page, statement string
	file, source    string
	// as converts the source's text into that of the page; nil: they are equal but for separators of thousands.
	as func(source string) string
}

const (
	changelog         = "../CHANGELOG.md"
	limitsPage        = "start/limits.md"
	compatibilityPage = "start/compatibility.md"
	policyLimits      = "../internal/policy/compile/doc.go"
	poolKind          = "../api/v1alpha1/addresspool.go"
)

// minor is the minor version of a version.
func minor(version string) string {
	return strings.Join(strings.SplitN(version, ".", 3)[:2], ".")
}

// times multiplies an integer.
func times(n, by int) func(string) string {
	return func(source string) string {
		v, err := strconv.Atoi(source)
		if err != nil {
			return err.Error()
		}
		return strconv.Itoa(v * n / by)
	}
}

// size is the number of addresses of a network.
func size(network string) string {
	p, err := netip.ParsePrefix(network)
	if err != nil {
		return err.Error()
	}
	return strconv.Itoa(1 << (32 - p.Bits()))
}

var figures = []figure{
	{limitsPage, `nodes for one operator \| tested with 10,000, simulated: (\d+) MiB`, "guides/operator-mode.md", `(\d+) MiB for 10,000 \|`, nil}, // which is compared with the benchmark,
	{limitsPage, `waiting ADDs on a node \| (\d+);`, "../internal/node/daemon/front.go", `pluginConnections\s+= (\d+)`, times(3, 4)},              // maxWaiting
	{limitsPage, `--enable-v6-egress` + "`" + ` \| ([\d,]+) a node`, "../internal/source/nodelocal/nodelocal.go", `Network4\s+= netip.MustParsePrefix\("([^"]+)"\)`, size},
	{limitsPage, `blocks of an AddressPool \| 2\^(\d+);`, "../internal/ipam/block/layout.go", `MaxIndex\s+= 1<<(\d+) - 1`, nil},
	{limitsPage, `size of a block \| 2\^0 to 2\^(\d+) addresses`, poolKind, `self >= 0 && self <= (\d+)"`, nil},
	{limitsPage, `reserved ranges of a pool \| (\d+)`, poolKind, `MaxItems=(\d+)\n(?:\t//[^\n]*\n)*\tReserved `, nil},
	{limitsPage, `a released address is reused \| (\d+ s)`, "reference/configuration.md", "`--cooling-period` [^\n]*? `(\\d+s)`", func(s string) string { return strings.TrimSuffix(s, "s") + " s" }},
	{limitsPage, `named ports of one policy \| ([\d,]+)`, policyLimits, `MaxSets = (\d+)`, nil},
	{limitsPage, `networks of one policy \| ([\d,]+)`, policyLimits, `MaxBlocks = (\d+)`, nil},
	{limitsPage, `selected by one namespace's NetworkPolicies \| ([\d,]+)`, "../internal/policy/resolve/budget.go", `MaxMembers = ([\d_]+)`, nil},
	{limitsPage, `in one namespace, without the label [^|]*\| (\d+)`, "../internal/membership/selectors.go", `MaxSelecting = (\d+)`, nil},
	{limitsPage, `template of an Egress \| (\d+) KiB`, "../internal/operator/egress/gatewayplan/template.go", `maxTemplate = (\d+) << 10`, nil},

	{compatibilityPage, `\n\| ([\d.]+) \| tested: \[Kubernetes' own tests\]`, "../tools/kubebox/go.mod", `k8s.io/kubernetes v(\S+)`, minor},
	{compatibilityPage, `\n\| ([\d.]+), [\d.]+ \| not tested; the chart installs \| rejected`, "../deploy/chart/Chart.yaml", `kubeVersion: ">=([\d.]+)`, minor},
	{compatibilityPage, `\n\| ([\d.]+) \| not tested; the chart installs \| not tested`, "../deploy/chart/templates/_helpers.tpl", `ports.enabled needs Kubernetes ([\d.]+) or later`, nil},
	{compatibilityPage, `\n\| containerd (\d+).x \|`, "../tools/containerd/go.mod", `containerd/containerd/v\d+ v(\d+)\.`, nil},
	{compatibilityPage, `CNI version ([\d.]+) with STATUS and GC`, "../internal/cni/plugin.go", `PluginSupports\([^)]*"([\d.]+)"\)`, nil},
	{compatibilityPage, `unmodified release (v[\d.]+)`, "../tools/amazonvpccni/go.mod", `aws/amazon-vpc-cni-k8s (v\S+)`, nil},

	{"start/bare-metal.md", `agnhost:([\d.]+)`, "../hack/lab-images.yaml", `name: registry.k8s.io/e2e-test-images/agnhost:(\S+)`, nil},
	{"start/bare-metal.md", `Kubernetes ([\d.]+) or later`, "../deploy/chart/templates/_helpers.tpl", `ports.enabled needs Kubernetes ([\d.]+) or later`, nil},
	{"start/lab.md", `agnhost:([\d.]+)`, "../hack/lab-images.yaml", `name: registry.k8s.io/e2e-test-images/agnhost:(\S+)`, nil},
	{"start/lab.md", `<none> +\d+s +(v[\d.]+)`, "../tools/kubebox/go.mod", `k8s.io/kubernetes (v\S+)`, nil},
}

// The limits and versions in the tables of docs/start are those of the code, the lab and the tests. A statement that a page
// repeats is the same everywhere in the page.
func TestFiguresOfStart(t *testing.T) {
	separators := strings.NewReplacer(",", "", "_", "")
	released := regexp.MustCompile(`\n## \[(\d[^]]*)\]`).FindStringSubmatch(readPage(t, changelog))
	named(t, `(?:berth-|version=v|dist/v|berth-node(?:-|:)v)(\d+\.\d+\.\d+)(?:\.tgz|[- \n]|\.oci)`, 20, func(page string, found []string) {
		if page != changelog && page != "guides/upgrade.md" && !strings.HasPrefix(page, "contribute/") && found[1] != released[1] {
			t.Errorf("%s has %q, want %s, the newest release in CHANGELOG.md", page, found[0], released[1])
		}
	})
	for _, f := range figures {
		source := regexp.MustCompile(f.source).FindStringSubmatch(readPage(t, f.file))
		if source == nil {
			t.Errorf("%s has no match of %s: follow the source of the figure in %s", f.file, f.source, f.page)
			continue
		}
		want := source[1]
		if f.as != nil {
			want = f.as(want)
		}
		stated := regexp.MustCompile(f.statement).FindAllStringSubmatch(readPage(t, f.page), -1)
		if stated == nil {
			t.Errorf("%s has no match of %s", f.page, f.statement)
		}
		for _, s := range stated {
			if separators.Replace(s[1]) != separators.Replace(want) {
				t.Errorf("%s says %q, want %q as in %s", f.page, s[0], want, f.file)
			}
		}
	}
}
