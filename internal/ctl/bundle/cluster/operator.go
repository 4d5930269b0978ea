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

// maxAnswer bounds a response, in bytes. Those of the largest cluster's operator are far smaller.
const maxAnswer = 64 << 20

// operator adds an operator's settings, metrics and readiness. Its image has no berthctl, so
// it is queried by port forwarding.
func (k *Cluster) operator(ctx context.Context, s *archive.Sink, pod corev1.Pod) error {
	port := operatorPort(&pod)
	if port == 0 {
		return errors.New("it serves nothing on a loopback address, which port forwarding needs: see its --health-address")
	}
	folder := "cluster/operators/" + pod.Name
	return k.served(ctx, pod, port, append(health(s, folder), answer{introspect.SettingsPath, func(r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, s.Most()+1))
		return errors.Join(err, s.Document(folder+"/settings.json", data))
	}}))
}

// gateway adds a gateway's metrics and readiness.
func (k *Cluster) gateway(ctx context.Context, s *archive.Sink, pod corev1.Pod) error {
	return k.served(ctx, pod, v1alpha1.EgressHealthPort, health(s, gatewayFolder(pod)+"/"+pod.Name))
}

// gatewayContainer is Berth's container in a gateway pod. The Egress's owner may add others.
const gatewayContainer = "egress"

// gatewayFolder returns the folder of a gateway's files in the bundle.
func gatewayFolder(pod corev1.Pod) string { return "cluster/gateways/" + pod.Namespace }

// answer is a path to query, and the function that reads the response.
type answer struct {
	path string
	read func(io.Reader) error
}

// health returns the paths that all of Berth's programs serve.
func health(s *archive.Sink, folder string) []answer {
	return []answer{
		{"/readyz", func(r io.Reader) error { return s.Text(folder+"/readyz.txt", r) }},
		{"/metrics", func(r io.Reader) error { return s.Text(folder+"/metrics.txt", r) }},
	}
}

// served queries a port of a pod.
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

// operatorPort returns a port that an operator serves on a loopback address, or 0.
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

// ask reads a path. A 503 of /readyz is no error: its body says why the program is not ready.
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
