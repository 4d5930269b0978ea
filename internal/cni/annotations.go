package cni

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// PodAnnotations is the capability by which a runtime tells a plugin the
// annotations of the pod, if the plugin's configuration declares it: containerd
// since 1.5, CRI-O since 1.29.
const PodAnnotations = "io.kubernetes.cri.pod-annotations"

// AnnotationPool is the one annotation that is passed on.
const AnnotationPool = "berth.dev/pool"

// maxPoolName bounds what is passed on as a pool's name, in bytes. Whether it can
// be one is for the daemon to say.
const maxPoolName = 256

// podAnnotations are what the runtime tells of a pod's annotations. A user may
// write 256 kB of them: only what the daemon knows is passed on.
type podAnnotations struct {
	known *wire.Annotations // nil: the runtime does not tell
}

// UnmarshalJSON implements json.Unmarshaler. Keys are compared as they are, which
// encoding/json does not do with the fields of a struct. A runtime that has the
// capability and a pod without annotations may say null.
func (a *podAnnotations) UnmarshalJSON(b []byte) error {
	const field = "runtimeConfig." + PodAnnotations
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &all); err != nil {
		return failf(types.ErrInvalidNetworkConfig, "%s: expected an object of texts: %s", field, err)
	}
	a.known = &wire.Annotations{}
	value, ok := all[AnnotationPool]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(value, &a.known.Pool); err != nil {
		return failf(types.ErrInvalidNetworkConfig, "%s: %s: expected a text: %s", field, AnnotationPool, err)
	}
	if n := len(a.known.Pool); n > maxPoolName {
		return failf(types.ErrInvalidNetworkConfig, "the pod's annotation %s is %d bytes long, expected the name of an AddressPool", AnnotationPool, n)
	}
	return nil
}
