package cni

import (
	"encoding/json"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// PodAnnotations is the capability by which a runtime tells a plugin the
// annotations of the pod, if the plugin's configuration declares it: containerd
// since 1.5, CRI-O since 1.29.
const PodAnnotations = "io.kubernetes.cri.pod-annotations"

// Limits of what is passed on of a pod's annotations, in bytes.
const (
	// maxPoolName bounds what is passed on as a pool's name. Whether it can be one is
	// for the daemon to say.
	maxPoolName = 256
	// maxAnnotations bounds keys and values together.
	maxAnnotations = 32 << 10
)

// podAnnotations are what the runtime tells of a pod's annotations. A user may
// write 256 kB of them: only Berth's are passed on.
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
	size := 0
	for key, told := range all {
		if !isBerths(key) {
			continue
		}
		var value string
		if err := json.Unmarshal(told, &value); err != nil {
			return failf(types.ErrInvalidNetworkConfig, "%s: %s: expected a text: %s", field, key, err)
		}
		a.known.Set(key, value)
		size += len(key) + len(value)
	}
	if n := len(a.known.Pool); n > maxPoolName {
		return failf(types.ErrInvalidNetworkConfig, "the pod's annotation %s is %d bytes long, expected the name of an AddressPool", wire.AnnotationPool, n)
	}
	if size > maxAnnotations {
		return failf(types.ErrInvalidNetworkConfig, "the pod's annotations of %s are %d bytes long, expected at most %d", domain, size, maxAnnotations)
	}
	return nil
}

// domain is that of the annotations which are Berth's, with those below it.
const domain = "berth.dev"

func isBerths(key string) bool {
	prefix, _, named := strings.Cut(key, "/")
	return named && (prefix == domain || strings.HasSuffix(prefix, "."+domain))
}
