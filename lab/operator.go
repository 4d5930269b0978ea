package lab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/lab/network/ns"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/lab/run/proc"
)

// maxOperators is how many a lab can have.
const maxOperators = 9

// firstOperatorPort is where the first operator's metrics are; each has the
// next.
const firstOperatorPort = 61680

// Operator is one process of berth-operator. It runs in the router's namespace,
// as it would on a machine that is none of the nodes.
type Operator struct {
	*proc.Process
	Name string // operator-1 and so on; its pod's

	netns    string
	address  string // of its metrics and probes
	restarts bool   // the lab starts it again when it ends by itself
}

func (l *Lab) raiseOperators(ctx context.Context) error {
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
		if err := kube.Again(ctx, name, func() error { return l.Kube.kubeconfig(ctx, kubeconfig, operatorAccount, "") }); err != nil {
			return err
		}
		o.Process = proc.New(name, filepath.Join(logs, name+".log"), func() proc.Command {
			return proc.Command{
				Path: filepath.Join(l.BinDir, "berth-operator"), Netns: o.netns,
				Args: slices.Concat(o.args(kubeconfig, l.clusterName()), l.operatorArgs(), l.OperatorArgs), Env: l.operatorEnv(name),
			}
		})
		l.operators = append(l.operators, o)
		if l.NoDaemons {
			continue
		}
		if err := o.Start(); err != nil {
			return err
		}
	}
	if l.RestartOperators {
		go l.restartOperators()
	}
	return nil
}

// restartPause is how long an operator that ended by itself stays away.
const restartPause = time.Second

func (l *Lab) restartOperators() {
	tick := time.NewTicker(restartPause)
	defer tick.Stop()
	for {
		select {
		case <-l.ended:
			return
		case <-tick.C:
		}
		for _, o := range l.operators {
			if !o.EndedByItself() {
				continue
			}
			if err := o.Start(); err != nil {
				l.Log.Warn("operator not restarted", "operator", o.Name, "err", err)
			}
		}
	}
}

// args are what the lab tells every operator.
func (o *Operator) args(kubeconfig, cluster string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--cluster-name=" + cluster,
		"--metrics-address=" + o.address,
	}
}

// operatorArgs are what follows from where pods' interfaces come from.
func (l *Lab) operatorArgs() (args []string) {
	var from []string
	switch l.Mode {
	case NodeMode: // by the daemons alone
	case OperatorMode:
		from, args = []string{"eni-operator"}, []string{"--ec2-endpoint=" + EC2URL}
	default:
		from = []string{string(l.Mode)}
	}
	if l.Kube.beside {
		from, args = append(from, string(PortMode)), append(args, "--first-interface-is-port=false")
	}
	if l.Egress {
		args = append(args, "--egress", "--egress-image="+gatewayImage)
	}
	return append(args, "--ipam="+strings.Join(from, ","))
}

func (l *Lab) operatorEnv(name string) []string {
	env := []string{"POD_NAME=" + name, "POD_NAMESPACE=" + operatorAccount.Namespace}
	of := l.operatorCredentials()
	for _, k := range slices.Sorted(maps.Keys(of)) {
		env = append(env, k+"="+of[k])
	}
	return env
}

// operatorCredentials are the variables by which an operator may call EC2, where
// there is one, and those of Options over them.
func (l *Lab) operatorCredentials() map[string]string {
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

// Operators are all there are, running or not; none in node mode.
func (l *Lab) Operators() []*Operator { return l.operators }

// Operator returns one by name.
func (l *Lab) Operator(name string) (*Operator, error) {
	for _, o := range l.operators {
		if o.Name == name {
			return o, nil
		}
	}
	return nil, fmt.Errorf("no operator %q; there are %d", name, len(l.operators))
}

// Get fetches a path of the operator's own address: /metrics, /readyz, /livez.
func (o *Operator) Get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return ns.Get(ctx, o.netns, "http://"+o.address+path)
}

// restartsAwaited is how often WaitReady awaits an operator that ended by itself.
// One that cannot start at all ends again and again.
const restartsAwaited = 3

// WaitReady returns once the operator calls itself ready, whether it leads or
// stands by. One that ended by itself is awaited where the lab starts it again: it
// may have lost its Lease while the machine stood still.
func (o *Operator) WaitReady(ctx context.Context) error {
	for begun := o.Starts(); ; {
		err := o.Wait(ctx, func() error { return o.ready(ctx) })
		if err == nil || !o.restarts || o.Starts() >= begun+restartsAwaited {
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

// Leader is the operator that leads, by the Lease; nil when none does.
func (l *Lab) Leader(ctx context.Context) (*Operator, error) {
	lease := &coordinationv1.Lease{}
	// The Lease has the account's name.
	if err := l.Kube.Client.Get(ctx, operatorAccount, lease); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the operators' Lease: %w", err)
	}
	if lease.Spec.HolderIdentity == nil {
		return nil, nil
	}
	for _, o := range l.operators {
		if o.Running() && o.leads(*lease.Spec.HolderIdentity) {
			return o, nil
		}
	}
	return nil, nil
}

// leads tells whether the holder of a Lease is this operator; its name begins
// with the pod's (--pod-name).
func (o *Operator) leads(holder string) bool { return strings.HasPrefix(holder, o.Name+"_") }
