package cluster

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/test/harness"
)

func operatorPod(phase corev1.PodPhase, args ...string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berth-operator-1", Labels: map[string]string{connect.NameLabel: connect.OperatorName}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: connect.OperatorName, Args: args, Env: []corev1.EnvVar{{Name: "BERTH_HEALTH_ADDRESS", Value: "127.0.0.1:61681"}}}, {Name: "injected"},
		}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// The bundle has what an operator serves, and why the rest is missing.
func TestOperator(t *testing.T) {
	const secret = "Planted7Secret"
	current := http.NewServeMux()
	current.HandleFunc("GET "+introspect.SettingsPath, func(w http.ResponseWriter, _ *http.Request) {
		web.WriteJSON(w, introspect.Settings{Version: "v1", Settings: []introspect.Setting{{Name: "ec2-endpoint", Value: "http://u:" + secret + "@ec2"}}})
	})
	current.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) })
	current.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "starting: NodeNetworks are not read yet", http.StatusServiceUnavailable)
	})
	for name, tc := range map[string]struct {
		pod     corev1.Pod
		port    uint16       // that is dialled
		serves  http.Handler // nil: nobody listens
		files   []string
		missing []string // in errors.txt
	}{
		"all":     {operatorPod(corev1.PodRunning), 61681, current, []string{"metrics.txt", "readyz.txt", "settings.json"}, nil},
		"pending": {operatorPod(corev1.PodPending), 0, nil, nil, []string{"it is Pending, and serves nothing"}},
		"older": {operatorPod(corev1.PodRunning, "--health-address=127.0.0.1:7"), 7, http.NotFoundHandler(), nil,
			[]string{"/readyz: 404 Not Found", "/settings: 404 Not Found", "/metrics: 404 Not Found"}},
		"gone":                           {operatorPod(corev1.PodRunning, "--health-address", ""), 61680, nil, nil, []string{"/settings: ", "nobody listens", "/metrics: "}},
		"metrics at a loopback address":  {operatorPod(corev1.PodRunning, "--health-address=10.0.0.1:7", "--metrics-address=localhost:8"), 8, current, []string{"metrics.txt", "readyz.txt", "settings.json"}, nil},
		"nothing at a loopback address":  {operatorPod(corev1.PodRunning, "--health-address=10.0.0.1:7", "--metrics-address=10.0.0.1:8"), 0, nil, nil, []string{"see its --health-address"}},
		"metrics are turned off as well": {operatorPod(corev1.PodRunning, "--health-address=", "--metrics-address="), 0, nil, nil, []string{"see its --health-address"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &Cluster{Options: Options{Timeout: time.Minute}, dial: dials(t, tc.pod, tc.port, tc.serves), pods: []corev1.Pod{tc.pod}}
			parts, contents, index := collect(t, k, "operator kube-system/berth-operator-1")
			var files []string
			for _, f := range index.Files {
				base, ok := strings.CutPrefix(f.Name, "cluster/operators/berth-operator-1/")
				if !ok {
					t.Errorf("%s is elsewhere", f.Name)
				}
				files = append(files, base)
			}
			slices.Sort(files)
			if parts != 1 || !slices.Equal(files, tc.files) {
				t.Errorf("files %v, want %v; %s", files, tc.files, contents[archive.ErrorsFile])
			}
			for _, missing := range tc.missing {
				if !bytes.Contains(contents[archive.ErrorsFile], []byte(missing)) {
					t.Errorf("%q is missing:\n%s", missing, contents[archive.ErrorsFile])
				}
			}
			if len(tc.missing) == 0 && len(index.Errors) > 0 {
				t.Errorf("%s", contents[archive.ErrorsFile])
			}
			for name, content := range contents {
				if bytes.Contains(content, []byte(secret)) {
					t.Errorf("%s has a secret: %s", name, content)
				}
			}
		})
	}
}

// collect collects the parts of a name, and returns how many there are and what they add.
func collect(t *testing.T, k *Cluster, name string) (n int, files map[string][]byte, index archive.Index) {
	t.Helper()
	parts := slices.DeleteFunc(k.Objects(), func(p archive.Part) bool { return p.Name != name })
	var out bytes.Buffer
	a := archive.New(&out, "x", "cluster", archive.Limits{File: 1 << 20, Total: 1 << 20}, time.Now)
	harness.OK(t, a.Collect(t.Context(), 1, parts))
	_, err := a.Close()
	harness.OK(t, err)
	files, index, err = archive.Open(&out)
	harness.OK(t, err)
	return len(parts), files, index
}

// dials returns a dialer for one port of a pod. Without a handler nothing listens there.
func dials(t *testing.T, to corev1.Pod, at uint16, serves http.Handler) connect.Dialer {
	return func(_ context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
		if port != at || pod.Name != to.Name {
			t.Errorf("port %d of %s, want %d", port, pod.Name, at)
		}
		if serves == nil {
			return nil, errors.New("nobody listens")
		}
		here, there := net.Pipe()
		l := &once{conn: there}
		go func() { _ = http.Serve(l, serves) }()
		return here, nil
	}
}

// The bundle has what gateways on the chosen nodes serve.
func TestGateway(t *testing.T) {
	serves := http.NewServeMux()
	serves.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) })
	serves.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not-forwarded", http.StatusServiceUnavailable)
	})
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "egress", Name: "internet-1", Labels: map[string]string{v1alpha1.LabelEgress: "internet"}},
		Spec:       corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for node, want := range map[string]int{"node-1": 1, "node-2": 0} {
		k := &Cluster{Options: Options{Timeout: time.Minute, Nodes: []string{node}}, dial: dials(t, pod, v1alpha1.EgressHealthPort, serves), gateways: []corev1.Pod{pod}}
		parts, contents, _ := collect(t, k, "gateway egress/internet-1")
		for name, text := range map[string]string{"metrics.txt": "up 1", "readyz.txt": "not-forwarded"} {
			if has := bytes.Contains(contents["cluster/gateways/egress/internet-1/"+name], []byte(text)); parts != want || has != (want == 1) {
				t.Errorf("of %s: %d parts, %s: %v", node, parts, name, has)
			}
		}
	}
}

// once is a listener with one connection.
type once struct{ conn net.Conn }

func (l *once) Accept() (net.Conn, error) {
	if l.conn == nil {
		return nil, net.ErrClosed
	}
	defer func() { l.conn = nil }()
	return l.conn, nil
}

func (l *once) Close() error   { return nil }
func (l *once) Addr() net.Addr { return &net.TCPAddr{} }
