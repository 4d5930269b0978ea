package cni

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// kubernetesArgs are the CNI_ARGS that Kubernetes' runtimes set.
type kubernetesArgs struct {
	types.CommonArgs

	K8S_POD_NAMESPACE          types.UnmarshallableString //nolint:revive // the name is the key
	K8S_POD_NAME               types.UnmarshallableString //nolint:revive // the name is the key
	K8S_POD_UID                types.UnmarshallableString //nolint:revive // the name is the key
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString //nolint:revive // the name is the key
}

// parseArgs reads CNI_ARGS ("K=V;K2=V2"). Keys that it does not know are an
// error unless IgnoreUnknown is set, as with the reference plugins. The infra
// container's ID is CNI_CONTAINERID once more and needs no place of its own.
func parseArgs(text string) (wire.Pod, error) {
	var a kubernetesArgs
	if err := types.LoadArgs(text, &a); err != nil {
		return wire.Pod{}, failf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS is %q, expected KEY=VALUE pairs separated by semicolons: %s", text, err)
	}
	return wire.Pod{Namespace: string(a.K8S_POD_NAMESPACE), Name: string(a.K8S_POD_NAME), UID: string(a.K8S_POD_UID)}, nil
}
