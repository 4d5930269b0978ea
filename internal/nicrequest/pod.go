package nicrequest

import (
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Pod has the properties of a pod that determine its NICs.
type Pod struct {
	// Annotations are the pod's annotations.
	Annotations map[string]string
	// NamespaceVPC is the annotation berth.dev/vpc of its namespace; empty: it has none.
	NamespaceVPC string
	// HostNetwork is true for pods in the node's network namespace.
	HostNetwork bool
	// Mirror is true for the mirror Pod of a static pod. The runtime knows the pod by another UID.
	Mirror bool
}

var vpcName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// VPC returns the name of the VPC of a pod's NICs; empty for a pod without NICs. The pod's annotation, even an empty one,
// overrides that of its namespace. For host-network and static pods the namespace's is ignored, and they must not request NICs
// themselves.
func (p Pod) VPC() (string, Errors) {
	var errs Errors
	own, said := p.Annotations[v1alpha1.AnnotationVPC]
	_, asks := p.Annotations[v1alpha1.AnnotationNICs]
	vpc := own
	if !said && !p.HostNetwork && !p.Mirror {
		vpc = p.NamespaceVPC
	}
	switch {
	case p.HostNetwork && (asks || own != ""):
		errs.add(fieldHostNetwork, "is true, but annotations ask for NICs, which a host-network pod cannot have")
	case p.Mirror && (asks || own != ""):
		errs.add(fieldVPC, "a static pod cannot have NICs")
	case asks && vpc == "":
		errs.add(fieldNICs, "asks for NICs, but neither the pod nor its namespace names a VPC in the annotation %s", v1alpha1.AnnotationVPC)
	case vpc != "" && !vpcName.MatchString(vpc):
		errs.add(fieldVPC, "is %.80q, expected the name of a VPC: at most 63 lower-case letters, digits and hyphens", vpc)
	}
	return vpc, errs
}

// NICs returns the NICs of a pod in a VPC. If most is above 0, more NICs than that are an error.
func (p Pod) NICs(first First, most int) ([]NIC, Errors) {
	entries, errs := Parse(p.Annotations[v1alpha1.AnnotationNICs])
	if len(errs) > 0 {
		return nil, errs
	}
	return Complete(entries, first, most)
}

// maxReadable is the number of bytes of the pod's name in the name of a PodNIC.
const maxReadable = 200

var hashText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ObjectName returns the name of the PodNIC of a pod's NIC: the names of both, readable by people, and 40 bits of a hash that
// differs for the next pod of that name. The same pod and NIC always have the same name, so the PodNIC cannot be created
// twice.
func ObjectName(pod, uid, nic string) string {
	sum := sha256.Sum256([]byte(uid + "\x00" + nic))
	if len(pod) > maxReadable {
		pod = strings.TrimRight(pod[:maxReadable], ".-")
	}
	readable := strings.Map(func(r rune) rune {
		if r == '_' || r == '.' {
			return '-'
		}
		return r
	}, strings.ToLower(nic))
	return pod + "-" + strings.Trim(readable, "-") + "-" + hashText.EncodeToString(sum[:5])
}
