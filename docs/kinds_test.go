package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// theirs are the names of kinds of other software that may be in a cluster: plurals, singulars if Berth has such a kind,
// short names, and categories.
var theirs = map[string]string{
	"Kubernetes": "all bindings componentstatuses cs configmaps cm endpoints ep events ev limitranges limits namespaces ns nodes no persistentvolumeclaims pvc " +
		"persistentvolumes pv pods po podtemplates replicationcontrollers rc resourcequotas quota secrets serviceaccounts sa services svc crd crds deployments deploy " +
		"daemonsets ds replicasets rs statefulsets sts horizontalpodautoscalers hpa cronjobs cj jobs certificatesigningrequests csr ingresses ing networkpolicies netpol " +
		"poddisruptionbudgets pdb priorityclasses pc storageclasses sc volumeattributesclasses vac ipaddresses ip servicecidrs",
	"Amazon VPC CNI": "eniconfigs securitygrouppolicies sgp cninodes cnd policyendpoints",
	"ACK":            "vpcs vpc subnets securitygroups",
	"Antrea":         "egresses egress eg externalippools eip ippools ippool trafficcontrols",
	"Calico":         "ippools ippool ipamblocks blockaffinities ipreservations networksets bgppeers felixconfigurations",
	"Cilium": "cilium ciliumnodes cn ciliumn ciliumendpoints cep ciliumep ciliumendpointslices ces ciliumidentities ciliumid ciliumnetworkpolicies cnp ciliumnp ccnp " +
		"ciliumpodippools cpip ciliumegressgatewaypolicies cegp ciliumlocalredirectpolicies clrp ciliumcidrgroups ccg ippools ippool lbippool lbippools l2announcement",
	"Coil":      "addresspools addresspool addressblocks addressblock blockrequests blockrequest egresses egress",
	"Kube-OVN":  "vpcs vpc subnets subnet ips ip vips vip vlans vlan ippools ippool security-groups sg vpc-nat-gateways vpc-nat-gw vpc-egress-gateways vpc-egress-gw veg provider-networks",
	"MetalLB":   "addresspools addresspool ipaddresspools bgppeers bgpadvertisements l2advertisements communities",
	"Multus":    "network-attachment-definitions net-attach-def",
	"NMState":   "nodenetworkstates nns nodenetworkconfigurationpolicies nncp nodenetworkconfigurationenactments nnce",
	"OVN-K8s":   "egressips eip egressfirewalls egressqoses egressservices",
	"Openshift": "netnamespaces hostsubnets egressnetworkpolicies clusternetworks",
}

// Each kind has a unique name, and documents use no other with kubectl.
func TestKindNamesAreUnique(t *testing.T) {
	others := map[string]string{}
	for of, names := range theirs {
		for _, name := range strings.Fields(names) {
			others[name] = of
		}
	}
	files, err := filepath.Glob("../deploy/chart/files/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs found: %v", err)
	}
	ambiguous, own := map[string]string{}, map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		names := crd.Spec.Names
		for _, name := range []string{names.Plural, names.Singular} {
			if of, shared := others[name]; shared {
				ambiguous[name] = of
				if len(names.ShortNames) == 0 {
					t.Errorf("%s: %s also has the name %s, and the kind has no short name", names.Kind, of, name)
				}
			}
		}
		for _, name := range append(names.ShortNames, names.Categories...) {
			if of, shared := others[name]; shared {
				t.Errorf("%s: %s also has the name %s", names.Kind, of, name)
			}
		}
		for _, name := range append([]string{names.Plural, names.Singular}, names.ShortNames...) {
			if kind, twice := own[name]; twice {
				t.Errorf("%s and %s have the name %s", kind, names.Kind, name)
			}
			own[name] = names.Kind
		}
		if !slices.Equal(names.Categories, []string{"berth"}) {
			t.Errorf("categories of %s = %q, want berth", names.Kind, names.Categories)
		}
	}
	if len(ambiguous) != 10 {
		t.Errorf("names that other software also has = %q, want 10", slices.Sorted(maps.Keys(ambiguous)))
	}

	texts := pages(t)
	for _, pattern := range []string{"reference/*.md", "../deploy/chart/templates/NOTES.txt"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range more {
			texts[page] = readPage(t, page)
		}
	}
	command := regexp.MustCompile(`kubectl (?:(?:-n|--namespace) \S+ )*(?:get|describe|edit|delete|wait|scale|patch|explain) ([a-z][a-z0-9,.]*)`)
	count := 0
	for page, text := range texts {
		for _, found := range command.FindAllStringSubmatch(text, -1) {
			for name := range strings.SplitSeq(found[1], ",") {
				if strings.HasSuffix(name, ".berth.dev") {
					count++
				}
				if of, shared := ambiguous[name]; shared {
					t.Errorf("%s: %q: %s also has the name %s, use %s with .berth.dev, or the short name", page, found[0], of, name, name)
				}
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d names were compared", count)
	}
}
