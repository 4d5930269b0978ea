package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/proc"
)

// maxOperators is the maximum number of operators of a lab.
const maxOperators = 9

// firstOperatorPort is the metrics port of the first operator; each further operator has the next one.
const firstOperatorPort = 61680

// firstPolicyPort is where the first operator serves network policies, on the address of the Kubernetes API, which nodes
// reach; each has the next.
const firstPolicyPort = 61780

// Operator is a process of berth-operator. It runs in the router's namespace.
type Operator struct {
	*proc.Process
	Name string // operator-1 and so on; also the name of its pod

	netns    string
	address  string // port of its metrics and probes
	restarts bool   // the lab restarts it when it exits by itself
}

// operators are the processes of berth-operator. The list does not change once they have started.
type operators struct {
	lab  *Lab
	list []*Operator
}

// kill kills all operators.
func (s *operators) kill() error {
	var errs []error
	for _, o := range s.list {
		errs = append(errs, o.Kill())
	}
	return errors.Join(errs...)
}

// start starts the operators, unless the caller does.
func (s *operators) start(ctx context.Context) error {
	l := s.lab
	logs := filepath.Join(l.Dir, "log")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	for i := range l.OperatorCount {
		name := fmt.Sprintf("operator-%d", i+1)
		o := &Operator{
			Name: name, netns: l.RouterPath(), address: fmt.Sprintf("127.0.0.1:%d", firstOperatorPort+i),
			restarts: l.RestartOperators,
		}
		kubeconfig := filepath.Join(l.Kube.dir, name+".kubeconfig")
		if err := kube.Retry(ctx, name, func() error { return l.Kube.kubeconfig(ctx, kubeconfig, operatorAccount, "") }); err != nil {
			return err
		}
		o.Process = proc.New(name, filepath.Join(logs, name+".log"), func() proc.Command {
			return proc.Command{
				Path: filepath.Join(l.BinDir, "berth-operator"), Netns: o.netns,
				Args: slices.Concat(o.args(kubeconfig, l.clusterName()), s.args(i), l.OperatorArgs), Env: s.env(name),
			}
		})
		s.list = append(s.list, o)
		if l.NoDaemons {
			continue
		}
		if err := o.Start(); err != nil {
			return err
		}
	}
	if l.RestartOperators {
		go s.restart()
	}
	return nil
}

// restartPause is the delay before an operator that exited by itself is restarted.
const restartPause = time.Second

func (s *operators) restart() {
	l := s.lab
	tick := time.NewTicker(restartPause)
	defer tick.Stop()
	for {
		select {
		case <-l.ended:
			return
		case <-tick.C:
		}
		for _, o := range s.list {
			if !o.EndedByItself() {
				continue
			}
			if err := o.Start(); err != nil {
				l.Log.Warn("failed to restart operator", "operator", o.Name, "err", err)
			}
		}
	}
}

// args returns the flags of every operator.
func (o *Operator) args(kubeconfig, cluster string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--cluster-name=" + cluster,
		"--metrics-address=" + o.address,
	}
}

// args returns the flags of operator i that depend on the lab's options.
func (s *operators) args(i int) (args []string) {
	l := s.lab
	var from []string
	switch l.Mode {
	case NodeMode: // used by the daemons only
	case OperatorMode:
		from, args = []string{"eni-operator"}, []string{"--ec2-endpoint=" + EC2URL}
	default:
		from = []string{string(l.Mode)}
	}
	if l.Kube.nodes.beside {
		from, args = append(from, string(PortMode)), append(args, "--first-interface-is-port=false")
	}
	if l.Egress {
		args = append(args, "--egress", "--egress-image="+gatewayImage)
	}
	if l.NetworkPolicies {
		at := netip.AddrPortFrom(l.Kube.Endpoint().Addr(), uint16(firstPolicyPort+i))
		args = append(args, "--network-policies", "--network-policy-address="+at.String())
	}
	return append(args, "--ipam="+strings.Join(from, ","))
}

func (s *operators) env(name string) []string {
	env := []string{"POD_NAME=" + name, "POD_NAMESPACE=" + operatorAccount.Namespace}
	of := s.credentials()
	for _, k := range slices.Sorted(maps.Keys(of)) {
		env = append(env, k+"="+of[k])
	}
	return env
}

// credentials returns environment variables: the operators' access key of EC2, if they call it, and those of Options.
func (s *operators) credentials() map[string]string {
	l := s.lab
	env := map[string]string{}
	if l.Cloud != nil && l.Mode == OperatorMode {
		key := OperatorKey
		for _, k := range l.Spec.AccessKeys {
			if k.ID == key.ID {
				key = k
			}
		}
		env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env["AWS_REGION"] = key.ID, key.Secret, l.Cloud.Region()
	}
	maps.Copy(env, l.OperatorEnv)
	return env
}

// Get fetches a path of the operator's own endpoint: /metrics, /readyz, /livez.
func (o *Operator) Get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return ns.Get(ctx, o.netns, "http://"+o.address+path)
}

// restartsAwaited limits the restarts for which WaitReady waits: an operator that cannot start at all exits each time.
const restartsAwaited = 3

// WaitReady waits until the operator is ready, whether it leads or not. If the lab restarts operators, one that has
// exited may have lost its Lease, and WaitReady waits for it again.
func (o *Operator) WaitReady(ctx context.Context) error {
	for before := o.Starts(); ; {
		err := o.Wait(ctx, func() error { return o.ready(ctx) })
		if err == nil || !o.restarts || o.Starts() >= before+restartsAwaited {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(restartPause):
		}
	}
}

func (o *Operator) ready(ctx context.Context) error {
	_, err := o.Get(ctx, "/readyz")
	return err
}

// leads reports whether this operator holds a Lease: the holder's identity starts with the pod's name (--pod-name).
func (o *Operator) leads(holder string) bool { return strings.HasPrefix(holder, o.Name+"_") }

// leader returns the operator that holds the Lease, or nil.
func (s *operators) leader(ctx context.Context) (*Operator, error) {
	lease := &coordinationv1.Lease{}
	// The Lease is named after the service account.
	if err := s.lab.Kube.Client.Get(ctx, operatorAccount, lease); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the operators' Lease: %w", err)
	}
	if lease.Spec.HolderIdentity == nil {
		return nil, nil
	}
	for _, o := range s.list {
		if o.Running() && o.leads(*lease.Spec.HolderIdentity) {
			return o, nil
		}
	}
	return nil, nil
}
