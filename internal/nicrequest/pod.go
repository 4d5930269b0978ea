package nicrequest

import (
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
)

// Pod is what is asked of one, as far as NICs go.
type Pod struct {
	// Annotations are the pod's.
	Annotations map[string]string
	// NamespaceVPC is the annotation berth.dev/vpc of its namespace; empty without.
	NamespaceVPC string
	// HostNetwork tells that it is in the node's network namespace.
	HostNetwork bool
	// Mirror tells that it stands for a static pod of a kubelet, which the runtime
	// knows by another UID.
	Mirror bool
}

var vpcName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// VPC is the name of the VPC that a pod's NICs are in; empty for a pod without NICs. A
// pod in a namespace with a VPC has none if its own annotation is empty. Pods of the
// node's network have NICs only if they ask for them themselves, which is an error.
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
		errs.add(fieldHostNetwork, "is true, and annotations ask for NICs, which a pod of the node's network cannot have")
	case p.Mirror && (asks || own != ""):
		errs.add(fieldVPC, "is that of a static pod, which cannot have NICs")
	case asks && vpc == "":
		errs.add(fieldNICs, "asks for NICs, and neither the pod nor its namespace names their VPC by the annotation %s", v1alpha1.AnnotationVPC)
	case vpc != "" && !vpcName.MatchString(vpc):
		errs.add(fieldVPC, "is %.80q, expected the name of a VPC: at most 63 lower-case letters, digits and hyphens", vpc)
	}
	return vpc, errs
}

// NICs are those that a pod in a VPC is to have, with most above 0 not more than that.
func (p Pod) NICs(first First, most int) ([]NIC, Errors) {
	entries, errs := Parse(p.Annotations[v1alpha1.AnnotationNICs])
	if len(errs) > 0 {
		return nil, errs
	}
	return Complete(entries, first, most)
}

// maxReadable is how much of the pod's name a PodNIC's name has, in bytes.
const maxReadable = 200

var hashText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ObjectName is the name of the PodNIC of a pod's NIC: for a person the names of both,
// and 40 bits of a hash, by which the next pod of that name has others. The same pod and
// NIC give the same name, so that it cannot be made twice.
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
