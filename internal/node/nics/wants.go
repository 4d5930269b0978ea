package nics

import (
	"errors"
	"fmt"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/node/attachment"
)

// firstInterface is the interface by which the kubelet knows a pod. A pod's NICs are added with it, not with interfaces
// that Multus adds later.
const firstInterface = nicrequest.FirstInterface

// rules are the settings that decide which NICs a pod is to have, and how.
type rules struct {
	firstIsPort      bool           // the pod's first interface is a NIC too
	firstMayBeBranch bool           // else it may be one that is a branch
	enforcing        plug.Enforcing // of such a branch
	ignoreUntold     bool           // pods whose annotations the runtime does not pass have the NICs of their PodNICs
}

// wants are the NICs that a pod asks for.
type wants struct {
	any     bool     // else the pod has none
	vpc     string   // in which; empty: not known
	names   []string // of its interfaces; it may have further PodNICs
	waiting string   // what has to be known first; empty: all is known
}

// of returns what a pod asks for. namespaceVPC is the annotation of its namespace, if that is known. The error is a
// user's: it names the annotation.
func (r rules) of(req attachment.Request, namespaceVPC string, known bool) (wants, error) {
	switch {
	case !r.firstIsPort && req.Key.IfName != firstInterface:
		return wants{}, nil
	case !req.Options.AnnotationsKnown:
		return r.untold(req, namespaceVPC, known)
	}
	_, says := req.Options.Annotations[v1alpha1.AnnotationVPC]
	if !says && !known {
		return wants{waiting: namespaceUnknown(req)}, nil
	}
	vpc, errs := nicrequest.Pod{Annotations: req.Options.Annotations, NamespaceVPC: namespaceVPC}.VPC()
	if err := errs.Err(); err != nil {
		return wants{}, err
	}
	if vpc == "" {
		return wants{}, r.none(req)
	}
	nics, errs := nicrequest.Pod{Annotations: req.Options.Annotations}.NICs(nicrequest.First{Name: req.Key.IfName, IsPort: r.firstIsPort, MayBePort: r.firstMayBeBranch}, 0)
	if err := errs.Err(); err != nil {
		return wants{}, err
	}
	w := wants{any: true, vpc: vpc}
	for _, n := range nics {
		w.names = append(w.names, n.Name)
	}
	return w, checkUID(req)
}

// untold is of for a pod whose annotations the runtime does not pass: only its namespace and its PodNICs are known.
func (r rules) untold(req attachment.Request, namespaceVPC string, known bool) (wants, error) {
	switch {
	case r.firstIsPort && r.ignoreUntold:
		return wants{any: true, names: []string{req.Key.IfName}}, checkUID(req)
	case r.firstIsPort:
		return wants{}, errors.New("the runtime passes no annotations of pods, which name the NICs of a pod: expected the capability io.kubernetes.cri.pod-annotations in the network's configuration, or --ignore-untold-annotations")
	case !known:
		return wants{waiting: namespaceUnknown(req)}, nil
	case namespaceVPC != "" && !r.ignoreUntold:
		return wants{}, fmt.Errorf("the runtime passes no annotations of pods, and namespace %s has its pods in VPC %s: expected the capability io.kubernetes.cri.pod-annotations in the network's configuration, or --ignore-untold-annotations", req.Pod.Namespace, namespaceVPC)
	}
	return wants{}, nil
}

// none returns what is wrong with a pod that asks for no VPC.
func (r rules) none(req attachment.Request) error {
	if !r.firstIsPort {
		return nil
	}
	return fmt.Errorf("metadata.annotations[%s] is missing, expected the name of a VPC there or at namespace %s: all pods of this node have ports of VPCs", v1alpha1.AnnotationVPC, req.Pod.Namespace)
}

func namespaceUnknown(req attachment.Request) string {
	return "the API server has not listed namespace " + shown(req.Pod.Namespace, 80) + " yet, which may name a VPC"
}

// checkUID returns an error for a pod without UID: its PodNICs could be those of an earlier pod of its name.
func checkUID(req attachment.Request) error {
	if req.Pod.UID == "" {
		return errors.New("CNI_ARGS: K8S_POD_UID is missing, expected the pod's UID, by which its PodNICs are found")
	}
	return nil
}
