package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	operatormode "github.com/berthnet/berth/deploy/operator-mode"
	"github.com/berthnet/berth/internal/vpclab/spec"
)

// Mode is where pods' addresses come from.
type Mode string

// The modes. In OperatorMode and PoolMode the lab has a Kubernetes API, and
// Nodes and Pods are objects there. In OperatorMode the nodes' own credentials
// permit no EC2 call; in PoolMode there is no EC2: the network is a data centre
// (package site) in place of a VPC.
const (
	NodeMode     Mode = "node"     // ENIs, by each node's own berthd
	OperatorMode Mode = "operator" // ENIs, by berth-operator for all nodes
	PoolMode     Mode = "pool"     // blocks of address pools, by berth-operator
)

// Modes are all there are.
var Modes = []Mode{NodeMode, OperatorMode, PoolMode}

// OperatorKey is the access key of the operators. It may do what
// deploy/operator-mode/iam-policy.json allows and no more, unless the spec has a
// key of the same ID.
var OperatorKey = spec.AccessKey{ID: "AKIALABLABLABLABOPER", Secret: "lab-secret-access-key-that-only-operators-have"}

// policyActions are those that an IAM policy allows. The lab does not look at
// the policy's resources and conditions.
func policyActions(policy []byte) (actions []string, err error) {
	var doc struct {
		Statement []struct{ Action any }
	}
	if err := json.Unmarshal(policy, &doc); err != nil {
		return nil, fmt.Errorf("read the operator's IAM policy: %w", err)
	}
	for _, s := range doc.Statement {
		switch a := s.Action.(type) {
		case string:
			actions = append(actions, a)
		case []any:
			for _, v := range a {
				actions = append(actions, fmt.Sprint(v))
			}
		}
	}
	return actions, nil
}

// programs of the lab, in BinDir.
func (o Options) programs() []string {
	if o.Mode != NodeMode {
		return []string{"berthd", "berth", "berth-operator"}
	}
	return []string{"berthd", "berth"}
}

func (o Options) completeMode() (Options, error) {
	switch o.Mode {
	case "":
		o.Mode = NodeMode
		return o, nil
	case NodeMode:
		return o, nil
	case OperatorMode, PoolMode:
	default:
		return o, fmt.Errorf("mode %q: want one of %v", o.Mode, Modes)
	}
	if o.OperatorCount == 0 {
		o.OperatorCount = 1
	}
	if o.OperatorCount < 0 || o.OperatorCount > maxOperators {
		return o, fmt.Errorf("%d operators: want 1 to %d", o.OperatorCount, maxOperators)
	}
	if o.KubeAssets == "" {
		o.KubeAssets = os.Getenv("KUBEBUILDER_ASSETS")
	}
	if o.KubeAssets == "" {
		return o, fmt.Errorf("%[1]s mode needs a Kubernetes control plane: set KUBEBUILDER_ASSETS to the folder that hack/kubebox.sh prints (make demo MODE=%[1]s does)", o.Mode)
	}
	return o, nil
}

// withoutNodePermissions is a spec whose instances may call nothing, and whose
// operators have a key.
func withoutNodePermissions(s spec.Spec) (spec.Spec, error) {
	s.Roles = slices.Clone(s.Roles)
	for i := range s.Roles {
		s.Roles[i].Actions = nil
	}
	if len(s.AccessKeys) == 0 {
		s.AccessKeys = []spec.AccessKey{spec.DefaultAccessKey()}
	}
	if slices.ContainsFunc(s.AccessKeys, func(k spec.AccessKey) bool { return k.ID == OperatorKey.ID }) {
		return s, nil
	}
	key := OperatorKey
	var err error
	key.Actions, err = policyActions(operatormode.Policy)
	s.AccessKeys = append(slices.Clone(s.AccessKeys), key)
	return s, err
}
