package nics

import (
	"errors"
	"fmt"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/source"
)

// firstInterface is the one by which the kubelet knows a pod: a pod's NICs come with it,
// and not with interfaces that others add later.
const firstInterface = nicrequest.FirstInterface

// rules are the settings that decide which NICs a pod is to have, and how.
type rules struct {
	firstIsPort      bool           // the pod's first interface is a NIC too
	firstMayBeBranch bool           // else it may be one that is a branch
	enforcing        plug.Enforcing // of such a branch
	ignoreUntold     bool           // take a pod of whose annotations nothing is told for one with the NICs that there are
}

// wants are the NICs that a pod asks for.
type wants struct {
	any     bool     // else the pod has none
	vpc     string   // in which; empty: not known
	names   []string // of its interfaces; more may be there
	waiting string   // what is not known yet and decides about it; empty: all is known
}

// of finds out what a pod asks for. namespaceVPC is the annotation of its namespace, if
// that is known. The error is a user's: it names the annotation.
func (r rules) of(req source.Request, namespaceVPC string, known bool) (wants, error) {
	switch {
	case !r.firstIsPort && req.Key.IfName != firstInterface:
		return wants{}, nil
	case !req.Wish.Told:
		return r.untold(req, namespaceVPC, known)
	}
	_, says := req.Wish.Annotations[v1alpha1.AnnotationVPC]
	if !says && !known {
		return wants{waiting: namespaceUnknown(req)}, nil
	}
	vpc, errs := nicrequest.Pod{Annotations: req.Wish.Annotations, NamespaceVPC: namespaceVPC}.VPC()
	if err := errs.Err(); err != nil {
		return wants{}, err
	}
	if vpc == "" {
		return wants{}, r.none(req)
	}
	nics, errs := nicrequest.Pod{Annotations: req.Wish.Annotations}.NICs(nicrequest.First{Name: req.Key.IfName, IsPort: r.firstIsPort, MayBePort: r.firstMayBeBranch}, 0)
	if err := errs.Err(); err != nil {
		return wants{}, err
	}
	w := wants{any: true, vpc: vpc}
	for _, n := range nics {
		w.names = append(w.names, n.Name)
	}
	return w, checkUID(req)
}

// untold is of for a pod of which the runtime tells no annotations: its namespace is all
// there is to go by, and PodNICs that are there.
func (r rules) untold(req source.Request, namespaceVPC string, known bool) (wants, error) {
	switch {
	case r.firstIsPort && r.ignoreUntold:
		return wants{any: true, names: []string{req.Key.IfName}}, checkUID(req)
	case r.firstIsPort:
		return wants{}, errors.New("the runtime tells no annotations of pods, which say what NICs a pod is to have: expected the capability io.kubernetes.cri.pod-annotations in the network's configuration, or --ignore-untold-annotations")
	case !known:
		return wants{waiting: namespaceUnknown(req)}, nil
	case namespaceVPC != "" && !r.ignoreUntold:
		return wants{}, fmt.Errorf("the runtime tells no annotations of pods, and namespace %s has its pods in VPC %s: expected the capability io.kubernetes.cri.pod-annotations in the network's configuration, or --ignore-untold-annotations", req.Pod.Namespace, namespaceVPC)
	}
	return wants{}, nil
}

// none is what is wrong with a pod that asks for no VPC.
func (r rules) none(req source.Request) error {
	if !r.firstIsPort {
		return nil
	}
	return fmt.Errorf("metadata.annotations[%s] is missing, expected the name of a VPC there or at namespace %s: all pods of this node have ports of VPCs", v1alpha1.AnnotationVPC, req.Pod.Namespace)
}

func namespaceUnknown(req source.Request) string {
	return "the API server has not told of namespace " + shown(req.Pod.Namespace, 80) + " yet, which may name a VPC"
}

// checkUID refuses a pod whose PodNICs could not be told from those of the pod before.
func checkUID(req source.Request) error {
	if req.Pod.UID == "" {
		return errors.New("CNI_ARGS: K8S_POD_UID is missing, expected the pod's UID, by which its PodNICs are found")
	}
	return nil
}
