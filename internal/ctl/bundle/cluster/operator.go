package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/node/introspect"
)

// maxAnswer is far above what an operator of the largest cluster serves at one path.
const maxAnswer = 64 << 20

// operator adds what one serves: its settings, its metrics, and whether it is ready or why
// not. Its image has no other program to run, so its ports are forwarded.
func (k *Cluster) operator(ctx context.Context, s *archive.Sink, pod corev1.Pod) error {
	port := operatorPort(&pod)
	if port == 0 {
		return errors.New("it serves nothing at a loopback address, which port forwarding needs: see its --health-address")
	}
	folder := "cluster/operators/" + pod.Name
	return k.served(ctx, pod, port, append(health(s, folder), answer{introspect.SettingsPath, func(r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, s.Most()+1))
		return errors.Join(err, s.Document(folder+"/settings.json", data))
	}}))
}

// gateway adds what one serves: its metrics, and whether it is ready or why not.
func (k *Cluster) gateway(ctx context.Context, s *archive.Sink, pod corev1.Pod) error {
	return k.served(ctx, pod, v1alpha1.EgressHealthPort, health(s, gatewayFolder(pod)+"/"+pod.Name))
}

// gatewayContainer is that of a gateway's pod which is Berth's: others are whose Egress it is.
const gatewayContainer = "egress"

// gatewayFolder is where in the bundle gateways' logs and answers are.
func gatewayFolder(pod corev1.Pod) string { return "cluster/gateways/" + pod.Namespace }

// answer is what a program serves at a path, and what becomes of it.
type answer struct {
	path string
	read func(io.Reader) error
}

// health are the answers that all of Berth's programs have.
func health(s *archive.Sink, folder string) []answer {
	return []answer{
		{"/readyz", func(r io.Reader) error { return s.Text(folder+"/readyz.txt", r) }},
		{"/metrics", func(r io.Reader) error { return s.Text(folder+"/metrics.txt", r) }},
	}
}

// served reads what a pod serves at a port.
func (k *Cluster) served(ctx context.Context, pod corev1.Pod, port uint16, answers []answer) error {
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("it is %s, and serves nothing", pod.Status.Phase)
	}
	client := k.dial.Client(&pod, port)
	var failed error
	for _, one := range answers {
		if err := ask(ctx, client, one.path, one.read); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", one.path, err))
		}
	}
	return failed
}

// operatorPort is one of an operator's at a loopback address, 0 if it has none.
func operatorPort(pod *corev1.Pod) uint16 {
	c, _ := connect.Container(pod, connect.OperatorName)
	if port := connect.LoopbackPort(connect.Setting(c, "health-address", "BERTH_HEALTH_ADDRESS")); port != 0 {
		return port
	}
	at, set := connect.LookupSetting(c, "metrics-address", "BERTH_METRICS_ADDRESS")
	if !set {
		at = config.DefaultOperatorMetrics
	}
	return connect.LoopbackPort(at)
}

// ask reads a path. That an operator is not ready is an answer too.
func ask(ctx context.Context, client *http.Client, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK && !(path == "/readyz" && resp.StatusCode == http.StatusServiceUnavailable) {
		return errors.New(resp.Status)
	}
	return read(io.LimitReader(resp.Body, maxAnswer))
}
