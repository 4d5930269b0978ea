package bundle

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// planted is part of every secret that the tests place in collected data.
const planted = "Planted7Secret"

const ns = "kube-system"

// front proxies to the API server and serves the kubelet endpoints itself, as the test control
// plane has no kubelets.
type front struct {
	pass http.Handler
	// exec runs a program in a pod and returns its exit code.
	exec func(ctx context.Context, pod string, args []string, stdout, stderr io.Writer) int
}

func (f front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // "", api, v1, namespaces, NS, pods, NAME, SUBRESOURCE
	switch {
	case len(parts) == 8 && parts[7] == "exec":
		f.serveExec(w, r, parts[6])
	case len(parts) == 8 && parts[7] == "log":
		fmt.Fprintf(w, "level=INFO msg=started of=%s previous=%s\nlevel=ERROR err=\"Bearer %s1234\"\n", parts[6], r.URL.Query().Get("previous"), planted)
	default:
		f.pass.ServeHTTP(w, r)
	}
}

func (f front) serveExec(w http.ResponseWriter, r *http.Request, pod string) {
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: []wsstream.ChannelType{
		wsstream.IgnoreChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.IgnoreChannel,
	}}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return
	}
	defer conn.Close()
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code := f.exec(r.Context(), pod, r.URL.Query()["command"], streams[1], streams[2]); code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "command terminated with non-zero exit code",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code)}}}}
	}
	_ = json.NewEncoder(streams[3]).Encode(status)
}

// reach returns a kubeconfig for a front that uses the credentials of cfg.
func reach(t *testing.T, cfg *rest.Config, exec func(context.Context, string, []string, io.Writer, io.Writer) int) (kubeconfig string) {
	t.Helper()
	target, err := url.Parse(cfg.Host)
	harness.OK(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, err = rest.TransportFor(cfg)
	harness.OK(t, err)
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server := httptest.NewServer(front{proxy, exec})
	t.Cleanup(server.Close)
	return configFor(t, server.URL)
}

func configFor(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	harness.OK(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server}}, Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
	}, path))
	return path
}

// bundled runs the command, which must succeed, and returns the content of the bundle.
func bundled(t *testing.T, args ...string) (said string, files map[string][]byte, index archive.Index) {
	t.Helper()
	said, left, err := run(t.Context(), t, args...)
	if err != nil || len(left) != 1 {
		t.Fatalf("support-bundle: error %v, files %v, want one file:\n%s", err, left, said)
	}
	data, err := os.ReadFile(left[0])
	harness.OK(t, err)
	files, index, err = archive.Open(bytes.NewReader(data))
	harness.OK(t, err)
	return said, files, index
}

// wantContent checks that the files of a bundle contain these texts, and that none contains a planted secret.
func wantContent(t *testing.T, files map[string][]byte, want map[string][]string) {
	t.Helper()
	for name, texts := range want {
		for _, text := range texts {
			if !bytes.Contains(files[name], []byte(text)) {
				t.Errorf("%s lacks %q:\n%s", name, text, files[name])
			}
		}
	}
	for name, content := range files {
		for _, secret := range []string{planted, base64.StdEncoding.EncodeToString([]byte(planted)), "kind: Secret\n"} {
			if bytes.Contains(content, []byte(secret)) {
				t.Errorf("%s contains a secret:\n%s", name, content)
			}
		}
	}
}

// run runs the command in an empty directory, and returns the files that it created.
func run(ctx context.Context, t *testing.T, args ...string) (said string, files []string, err error) {
	t.Helper()
	dir := t.TempDir()
	var out bytes.Buffer
	cmd := New(Options{})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{"--output", filepath.Join(dir, "bundle.tar.gz")}, args...))
	cmd.SetErr(&out)
	err = cmd.ExecuteContext(ctx)
	entries, readErr := os.ReadDir(dir)
	harness.OK(t, readErr)
	for _, e := range entries {
		files = append(files, filepath.Join(dir, e.Name()))
	}
	return out.String(), files, err
}

// populate creates nodes, and secrets in every kind of object. A node gets a daemon in the
// given phase, or none if the phase is empty.
func populate(t *testing.T, phases map[string]corev1.PodPhase) {
	t.Helper()
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	secrets := map[string]string{"example.com/registry-password": planted, "note": "https://me:" + planted + "@registry stays"}
	env := []corev1.EnvVar{{Name: "AWS_SECRET_ACCESS_KEY", Value: planted}, {Name: "HTTPS_PROXY", Value: "http://u:" + planted + "@proxy:3128"}, {Name: "MODE", Value: "stays"}}
	applied := map[string]string{corev1.LastAppliedConfigAnnotation: `{"spec":{"env":[{"name":"DB_PASSWORD","value":"` + planted + `"}]},"stays":true}`}
	labels := map[string]string{"app.kubernetes.io/name": "berthd"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "berthd", Image: "berth-node:dev", Env: env, Args: []string{"--api-token", planted, "--token=" + planted}},
		{Name: "sidecar", Image: "sidecar:stays", Env: []corev1.EnvVar{{Name: "X", Value: planted}}, Args: []string{"-p" + planted}},
	}}}
	create := func(o client.Object) {
		t.Helper()
		harness.OK(t, c.Create(t.Context(), o))
		t.Cleanup(func() { _ = client.IgnoreNotFound(c.Delete(context.Background(), o, client.GracePeriodSeconds(0))) })
	}
	create(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "berthd", Annotations: applied, Labels: map[string]string{"app.kubernetes.io/part-of": "berth"}},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}})
	// Objects of other software have secrets that neither their names nor their format reveals.
	unknown := corev1.PodSpec{HostNetwork: true, Volumes: []corev1.Volume{{Name: "stays", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d", VolumeAttributes: map[string]string{"x": planted}}}}}, Containers: []corev1.Container{{
		Name: "agent", Image: "agent:stays", Command: []string{"sh", "-c", "agent -p" + planted}, Args: []string{"-p" + planted},
		Env: []corev1.EnvVar{{Name: "DB_PASS", Value: planted}, {Name: "X", Value: planted}},
	}}}
	others := map[string]string{"app": "agent"}
	create(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "cyberthreat-agent", Annotations: map[string]string{"x": planted, corev1.LastAppliedConfigAnnotation: planted}},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: others}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: others, Annotations: map[string]string{"x": planted}}, Spec: unknown}}})
	create(&v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: secrets}, Spec: v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.PoolSubnet{{IPv4: "10.2.0.0/24"}}}})
	create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e1"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"},
		Reason: "FailedCreatePodSandBox", Message: "no address stays; Authorization: Bearer " + planted + "1234", Type: "Warning", LastTimestamp: metav1.Now()})
	create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e2"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"},
		Reason: "Pulling", Message: "not shown " + planted, LastTimestamp: metav1.Now()})
	for name, phase := range phases {
		create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: secrets}})
		if phase == "" {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "berthd-" + name, Labels: labels,
			Annotations: map[string]string{v1alpha1.AnnotationPool: "a\nforged"}}, Spec: *template.Spec.DeepCopy()}
		pod.Spec.NodeName = name
		create(pod)
		pod.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "berthd", RestartCount: 1,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
		harness.OK(t, c.Status().Update(t.Context(), pod))
	}
}

// nodeBundle writes the bundle of a node, including a file name that leads outside the archive.
func nodeBundle(out io.Writer) int {
	a := archive.New(out, "x", "node-1", archive.Limits{File: 1 << 20, Total: 8 << 20}, time.Now)
	err := a.Collect(context.Background(), 1, []archive.Part{{Name: "routes", Timeout: time.Minute, Collect: func(_ context.Context, s *archive.Sink) error {
		return errors.Join(s.Bytes("kernel/routes.txt", []byte("10.0.0.7 dev bth1\n")), s.Bytes("../../../etc/cron.d/x", []byte("x\n")), errors.New("half of it"))
	}}})
	if _, closeErr := a.Close(); err != nil || closeErr != nil {
		return 1
	}
	return 0
}

// One archive has objects, logs, events, the bundles of nodes, and an error for each part of a node that failed.
func TestCluster(t *testing.T) {
	populate(t, map[string]corev1.PodPhase{"node-1": corev1.PodRunning, "node-2": corev1.PodRunning, "node-3": corev1.PodRunning, "node-4": "", "node-5": corev1.PodPending})
	var asked []string
	kubeconfig := reach(t, harness.ControlPlane.Config(), func(ctx context.Context, pod string, args []string, out, said io.Writer) int {
		switch pod {
		case "berthd-node-1":
			asked = args
			return nodeBundle(out)
		case "berthd-node-2":
			fmt.Fprintln(said, "no such file; token="+planted)
			return 127
		}
		_, _ = out.Write([]byte{0x1f, 0x8b}) // a truncated gzip header
		<-ctx.Done()
		return 1
	})
	said, got, index := bundled(t, "--all", "--kubeconfig", kubeconfig, "--since=1h", "--node-timeout=2s")
	wantContent(t, got, map[string][]string{
		"cluster/version.json":                                {"gitVersion"},
		"cluster/nodes.yaml":                                  {"name: node-1", "name: node-5"},
		"cluster/daemonsets.yaml":                             {"kind: DaemonSet", "value: stays", "image: agent:stays", "hostNetwork: true"},
		"cluster/pods.yaml":                                   {"name: berthd-node-1", "- --api-token", "image: sidecar:stays"},
		"cluster/pods.txt":                                    {"node-1 kube-system/berthd-node-1", `pool="a\nforged"`},
		"cluster/addresspools.yaml":                           {"kind: AddressPool", "10.2.0.0/24", "example.com/registry-password: REDACTED", "@registry stays"},
		"cluster/customresourcedefinitions.yaml":              {"nodenetworks.berth.dev"},
		"cluster/events.txt":                                  {"FailedCreatePodSandBox: no address stays"},
		"cluster/events-others.txt":                           {"Pod Pulling"},
		"nodes/node-1/logs/berthd-node-1/berthd.log":          {"msg=started of=berthd-node-1 previous=false\n"},
		"nodes/node-1/logs/berthd-node-1/berthd.previous.log": {"previous=true"},
		"nodes/node-1/kernel/routes.txt":                      {"10.0.0.7 dev bth1"},
		"nodes/node-1/_/_/_/etc/cron.d/x":                     {"x"},
		"nodes/node-1/index.json":                             {`"scope": "node-1"`},
		"errors.txt": {"routes: half of it", "node node-2: running /berthctl in pod kube-system/berthd-node-2: ", "it says: no such file",
			"node node-3: not done within 2s", "node node-4: no pod with", "node node-5: pod kube-system/berthd-node-5 of berthd is Pending"},
	})
	if strings.Contains(said, planted) || !strings.Contains(said, "node-4: no pod") {
		t.Errorf("output contains a secret or lacks the error of node-4:\n%s", said)
	}
	if want := "/berthctl support-bundle --local --output=- --since=1h0m0s --timeout=20s --max-file-size=4Mi"; strings.Join(asked, " ") != want {
		t.Errorf("command in the pod = %q, want %q", asked, want)
	}
	if len(index.Errors) < 5 || index.Scope != "cluster" {
		t.Errorf("index = %+v, want scope cluster and at least 5 errors", index)
	}
}

// The bundle has Egresses, their objects, and the logs of their gateways.
func TestBundleOfEgresses(t *testing.T) {
	populate(t, nil)
	c := harness.KubeClient(t)
	managed := metav1.ObjectMeta{Namespace: "default", Name: "internet", Labels: map[string]string{"app.kubernetes.io/managed-by": v1alpha1.OwnerOperator}}
	other := metav1.ObjectMeta{Namespace: "default", Name: "somebodys"}
	port := []corev1.ServicePort{{Port: 5555, Protocol: corev1.ProtocolUDP}}
	for _, o := range []client.Object{
		&v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "internet"}, Spec: v1alpha1.EgressSpec{Destinations: []string{"192.0.2.0/24"}, Template: &v1alpha1.EgressPodTemplate{
			Spec: &runtime.RawExtension{Raw: []byte(`{"containers": [{"name": "egress", "env": [{"name": "API_TOKEN", "value": "` + planted + `"}]}, {"name": "proxy", "image": "i", "args": ["-p` + planted + `"]}]}`)},
		}}},
		&v1alpha1.EgressClient{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"}, Spec: v1alpha1.EgressClientSpec{PodUID: "u-1", NodeName: "node-1"}},
		&v1alpha1.EgressClientSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "internet-x7"}, Clients: []v1alpha1.ServedClient{{UID: "u-1", Addresses: []string{"10.0.0.5"}}}},
		&corev1.Service{ObjectMeta: managed, Spec: corev1.ServiceSpec{Ports: port}}, &corev1.Service{ObjectMeta: other, Spec: corev1.ServiceSpec{Ports: port}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "internet-1", Labels: map[string]string{v1alpha1.LabelEgress: "internet", connect.NameLabel: "the-makers"}}, Spec: corev1.PodSpec{
			NodeName: "node-1", Containers: []corev1.Container{{Name: "egress", Image: "i"}, {Name: "sidecar", Image: "i"}},
		}},
	} {
		harness.OK(t, c.Create(t.Context(), o))
		t.Cleanup(func() {
			_ = client.IgnoreNotFound(c.Delete(context.Background(), o, client.GracePeriodSeconds(0)))
		})
	}
	gateway := &corev1.Pod{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "internet-1"}, gateway))
	for _, name := range []string{"egress", "sidecar"} {
		gateway.Status.ContainerStatuses = append(gateway.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	}
	harness.OK(t, c.Status().Update(t.Context(), gateway))
	// The namespace of Berth's own pods does not matter.
	_, got, index := bundled(t, "--all", "--berth-namespace", ns, "--kubeconfig", reach(t, harness.ControlPlane.Config(), nil))
	wantContent(t, got, map[string][]string{
		"cluster/egresses.yaml": {"192.0.2.0/24"}, "cluster/egressclients.yaml": {"podUID: u-1"}, "cluster/egressclientslices.yaml": {"10.0.0.5"}, "cluster/services.yaml": {"name: internet"}, "cluster/gateways.yaml": {"name: internet-1"},
		"cluster/gateways/default/logs/internet-1/egress.log": {"of=internet-1"},
	})
	if log := got["cluster/gateways/default/logs/internet-1/sidecar.log"]; log != nil {
		t.Errorf("logs of another container were collected:\n%s", log)
	}
	if bytes.Contains(got["cluster/services.yaml"], []byte("somebodys")) {
		t.Errorf("Services of other software were collected:\n%s", got["cluster/services.yaml"])
	}
	if !slices.ContainsFunc(index.Errors, func(e archive.Error) bool { return e.Part == "gateway default/internet-1" }) { // it is Pending
		t.Errorf("no error for the pending gateway: %+v", index.Errors)
	}
}

// The bundle has VPCs, PodNICs, NICPolicies and the webhook configuration, without the Secrets that they reference.
func TestBundleOfVPCs(t *testing.T) {
	populate(t, nil)
	c := harness.KubeClient(t)
	ref := &v1alpha1.PodReference{Name: "web", UID: "u-1"}
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{"CREATE"}, Rule: admissionregistrationv1.Rule{APIGroups: []string{"none.example"}, APIVersions: []string{"v1"}, Resources: []string{"nones"}},
	}}
	ignore, none := admissionregistrationv1.Ignore, admissionregistrationv1.SideEffectClassNone
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "openstack"}, StringData: map[string]string{"username": planted + "user", "password": planted, "unsuspicious": planted}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "berth-operator-webhook"}, StringData: map[string]string{"ca.key": planted, "ca.crt": planted}},
		&v1alpha1.VPC{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: v1alpha1.VPCSpec{
			Provider: v1alpha1.ProviderNeutron, Network: "tenant-a", Endpoint: "https://keystone.example:5000/v3",
			Credentials: &v1alpha1.VPCCredentials{Type: v1alpha1.CredentialsPassword, SecretName: "openstack"},
		}},
		&v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-eth0"}, Spec: v1alpha1.PodNICSpec{VPC: "blue", Pod: ref, Interface: "eth0"}},
		&v1alpha1.NICPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}, Spec: v1alpha1.NICPolicySpec{PodSelector: &v1alpha1.LabelSelector{}, Subnet: "subnet-1"}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "berth-ports"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "ports.berth.dev", Rules: rules, FailurePolicy: &ignore, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: ns, Name: "berth-operator"}},
		}}},
	} {
		harness.OK(t, c.Create(t.Context(), o))
		t.Cleanup(func() { _ = client.IgnoreNotFound(c.Delete(context.Background(), o)) })
	}
	_, got, index := bundled(t, "--all", "--kubeconfig", reach(t, harness.ControlPlane.Config(), nil))
	wantContent(t, got, map[string][]string{
		"cluster/vpcs.yaml":                            {"kind: VPC", "network: tenant-a", "keystone.example:5000/v3", "secretName: REDACTED"},
		"cluster/podnics.yaml":                         {"kind: PodNIC", "name: web-eth0", "vpc: blue"},
		"cluster/nicpolicies.yaml":                     {"kind: NICPolicy", "name: db", "subnet: subnet-1"},
		"cluster/validatingwebhookconfigurations.yaml": {"name: berth-ports", "failurePolicy: Ignore"},
		"cluster/customresourcedefinitions.yaml":       {"vpcs.berth.dev", "podnics.berth.dev", "nicpolicies.berth.dev"},
	})
	for _, e := range index.Errors {
		t.Errorf("unexpected error of part %s: %s", e.Part, e.Error)
	}
}

// A bundle of one node has no data of other nodes.
func TestBundleOfOneNode(t *testing.T) {
	populate(t, map[string]corev1.PodPhase{"node-1": corev1.PodRunning, "node-2": corev1.PodRunning})
	kubeconfig := reach(t, harness.ControlPlane.Config(), func(_ context.Context, pod string, _ []string, out, _ io.Writer) int {
		if pod != "berthd-node-1" {
			t.Errorf("exec in pod %s, want berthd-node-1 only", pod)
		}
		return nodeBundle(out)
	})
	_, got, _ := bundled(t, "--node=node-1", "--kubeconfig", kubeconfig)
	for name := range got {
		if strings.HasPrefix(name, "nodes/node-2") {
			t.Errorf("%s belongs to another node", name)
		}
	}
	if _, files, err := run(t.Context(), t, "--node=node-9", "--kubeconfig", kubeconfig); err == nil || !strings.Contains(err.Error(), "--node node-9") || len(files) > 0 {
		t.Errorf("unknown node: error = %v, files = %v, want an error that names the flag, and no files", err, files)
	}
}

// Without permissions the command reports each part that it cannot read, and collects the rest.
func TestBundleWithoutPermissions(t *testing.T) {
	populate(t, map[string]corev1.PodPhase{"node-1": corev1.PodRunning})
	cfg, err := harness.ControlPlane.ConfigFor("nobody", "nobodies")
	harness.OK(t, err)
	kubeconfig := reach(t, cfg, nil)
	said, got, _ := bundled(t, "--all", "--kubeconfig", kubeconfig)
	for _, what := range []string{"objects nodes: ", "objects nodenetworks: ", "events: ", "pods of Berth: ", "gateways of Egresses: "} {
		if !bytes.Contains(got["errors.txt"], []byte(what)) || !strings.Contains(said, what) {
			t.Errorf("errors.txt or the output lacks %q:\n%s", what, got["errors.txt"])
		}
	}
	if len(got["cluster/version.json"]) == 0 {
		t.Error("the API server's version was not collected")
	}
}

// The documented ClusterRole suffices for a complete bundle, except for endpoints of kubelets.
func TestDocumentedClusterRoleSuffices(t *testing.T) {
	populate(t, map[string]corev1.PodPhase{"node-1": corev1.PodRunning})
	page, err := os.ReadFile(filepath.Join(harness.Tree(), "docs", "troubleshoot", "support.md"))
	harness.OK(t, err)
	_, text, _ := strings.Cut(string(page), "```yaml\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: berth-support}\n")
	text, _, _ = strings.Cut(text, "```")
	role := &rbacv1.ClusterRole{}
	harness.OK(t, yaml.Unmarshal([]byte(text), role))
	role.Name = "berth-support"
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "supporter"}}}
	c := harness.KubeClient(t)
	for _, o := range []client.Object{role, binding} {
		harness.OK(t, c.Create(t.Context(), o))
		t.Cleanup(func() { harness.OK(t, c.Delete(context.Background(), o)) })
	}
	cfg, err := harness.ControlPlane.ConfigFor("supporter", "system:authenticated")
	harness.OK(t, err)
	harness.Eventually(t, time.Minute, "the role is known", func() error {
		return harness.KubeClientFor(t, cfg).List(t.Context(), &v1alpha1.BlockRequestList{})
	})
	kubeconfig := reach(t, cfg, func(_ context.Context, _ string, _ []string, out, _ io.Writer) int { return nodeBundle(out) })
	_, _, index := bundled(t, "--all", "--kubeconfig", kubeconfig)
	for _, e := range index.Errors {
		if e.Part != "kubelet of node-1" && e.Part != "node node-1, routes" {
			t.Errorf("unexpected error of part %s: %s", e.Part, e.Error)
		}
	}
	// The API server authorizes exec and port forwarding; the front does not.
	set, err := kubernetes.NewForConfig(harness.ControlPlane.Config())
	harness.OK(t, err)
	for _, sub := range []string{"exec", "portforward"} {
		for _, verb := range []string{"get", "create"} { // by WebSocket, by SPDY
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "supporter",
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Verb: verb, Resource: "pods", Subresource: sub}}}
			review, err = set.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			if err != nil || !review.Status.Allowed {
				t.Errorf("%s of pods/%s is not allowed: %v", verb, sub, err)
			}
		}
	}
}

// An unfinished bundle leaves no file behind.
func TestFailedBundleLeavesNoFile(t *testing.T) {
	populate(t, map[string]corev1.PodPhase{"node-1": corev1.PodRunning})
	t.Run("interrupt", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		kubeconfig := reach(t, harness.ControlPlane.Config(), func(ctx context.Context, _ string, _ []string, _, _ io.Writer) int {
			interrupt()
			<-ctx.Done()
			return 1
		})
		if _, files, err := run(ctx, t, "--all", "--kubeconfig", kubeconfig); !errors.Is(err, context.Canceled) || len(files) > 0 {
			t.Errorf("error %v, files %v; want context.Canceled and no files", err, files)
		}
	})
	t.Run("no API server", func(t *testing.T) {
		if _, files, err := run(t.Context(), t, "--all", "--kubeconfig", configFor(t, "http://127.0.0.1:1")); err == nil || !strings.Contains(err.Error(), "reach the API server") || len(files) > 0 {
			t.Errorf("error %v, files %v; want an unreachable API server and no files", err, files)
		}
	})
	t.Run("output file exists", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "there")
		harness.OK(t, os.WriteFile(path, []byte("x"), 0o600))
		cmd := New(Options{Node: func(context.Context, NodeOptions) []archive.Part { return nil }})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs([]string{"--output", path})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "already exists") {
			t.Errorf("error = %v, want error containing \"already exists\"", err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "x" {
			t.Errorf("existing file = %q, error %v; want it unchanged", data, err)
		}
	})
}

// As a kubectl plugin the command uses kubectl's client configuration and requires a choice of nodes.
func TestKubectlPlugin(t *testing.T) {
	for args, want := range map[string]string{"": "specify --all", "--all": "this way", "--kubeconfig=x": "unknown flag"} {
		cmd := New(Options{Config: func() (*rest.Config, error) { return nil, errors.New("this way") }})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error = %v, want %q", args, err, want)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"": "specify --node NODE or --all", "--local": "specify --node NODE or --all", // this system is no node
		"--local --all": "local", "--all --node=a": "all", "--max-size=1": "expected a size of at least 4Ki", "--max-file-size=big": "expected a size",
		"x": "unknown command",
	} {
		if _, files, err := run(t.Context(), t, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) || len(files) > 0 {
			t.Errorf("%s: error = %v, files %v; want error containing %q", args, err, files, want)
		}
	}
	t.Setenv("KUBECONFIG", "/nonexistent")
	if _, _, err := run(t.Context(), t, "--all"); err == nil || !strings.Contains(err.Error(), "no cluster is configured") {
		t.Errorf("without a cluster: error = %v, want \"no cluster is configured\"", err)
	}
}
