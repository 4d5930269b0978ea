package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/check"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// person returns the configuration of a user with only the permissions that docs/guides/kubectl-berth.md documents.
func person(t *testing.T) *rest.Config {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Tree(), "docs", "guides", "kubectl-berth.md"))
	harness.OK(t, err)
	_, rest, _ := strings.Cut(string(page), "### RBAC for kubectl berth")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	roles, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/guides/kubectl-berth.md has no roles for kubectl berth")
	}
	harness.OK(t, harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"roles.yaml": {Data: []byte(roles)}}))
	c := rbacClient(t)
	subject := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "ops"}}
	for _, o := range []client.Object{
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ops"}, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kubectl-berth"}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ops", Namespace: "kube-system"}, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "kubectl-berth"}},
	} {
		harness.OK(t, client.IgnoreAlreadyExists(c.Create(t.Context(), o)))
	}
	cfg, err := harness.ControlPlane.ConfigFor("ops")
	harness.OK(t, err)
	harness.Eventually(t, harness.Patience, "the roles are effective", func() error {
		_, code, err := try(t, Options{Config: cfg, Dial: nobody}, "pools")
		if code == ExitUnwell {
			return errors.New("not yet")
		}
		return err
	})
	return cfg
}

func rbacClient(t *testing.T) client.Client { return harness.KubeClient(t) }

func nobody(context.Context, *corev1.Pod, uint16) (net.Conn, error) {
	return nil, errors.New("connection refused")
}

// try runs kubectl berth.
func try(t *testing.T, o Options, args ...string) (out string, code int, err error) {
	t.Helper()
	var w bytes.Buffer
	cmd := New(o)
	cmd.SetArgs(args)
	cmd.SetOut(&w)
	cmd.SetErr(io.Discard)
	code, err = ExitCode(cmd.ExecuteContext(t.Context()))
	return w.String(), code, err
}

// create creates objects, including their status.
func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	c := harness.KubeClient(t)
	for _, o := range objects {
		with := o.DeepCopyObject().(client.Object)
		harness.OK(t, kube.Retry(t.Context(), "create "+o.GetName(), func() error { return client.IgnoreAlreadyExists(c.Create(t.Context(), o)) }))
		with.SetResourceVersion(o.GetResourceVersion())
		with.SetUID(o.GetUID())
		if _, is := o.(*corev1.Event); !is {
			harness.OK(t, c.Status().Update(t.Context(), with))
		}
	}
}

// inMode creates a cluster of two nodes in a mode, and returns a dialer for its nodes and a pod.
func inMode(t *testing.T, ipam string) (dial connect.Dialer, web *corev1.Pod) {
	t.Helper()
	harness.KubeClean(t)
	a, b := node("node-a", corev1.ConditionTrue), node("node-b", corev1.ConditionTrue)
	da, db := berthd("node-a", ipam, true), berthd("node-b", ipam, true)
	op := operatorPod("berth-operator-0", true)
	web = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.5", PodIPs: []corev1.PodIP{{IP: "10.0.0.5"}}},
	}
	create(t, &a, &b, &da, &db, &op, web)
	create(t, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "node-a.1"}, Type: corev1.EventTypeWarning, Reason: "NetworkSubnetFull", Message: "subnet-1 is full",
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-a"}, ReportingController: connect.OperatorName, ReportingInstance: "x",
		Action: "ManageAddresses", EventTime: metav1.NewMicroTime(time.Now()), LastTimestamp: metav1.Now(),
	}, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other.1"}, Type: corev1.EventTypeNormal, Reason: "Scheduled", Message: "not Berth's",
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "web-0"}, Source: corev1.EventSource{Component: "default-scheduler"}, LastTimestamp: metav1.Now(),
	})
	doc := document("node-a")
	doc.Allocated[0].Namespace, doc.Allocated[0].Pod = "default", "web-0"
	return pipes(map[string]http.Handler{"node-a": serving(doc), "node-b": serving(document("node-b"))}), web
}

// The permissions documented in docs/guides/kubectl-berth.md suffice for every command in all modes.
func TestDocumentedPermissionsSuffice(t *testing.T) {
	cfg := person(t)
	for ipam, more := range map[string]func(){
		"eni": func() {},
		"eni-operator": func() {
			for _, name := range []string{"node-a", "node-b"} {
				n := network(name, 3, 1, 4)
				create(t, &n)
			}
		},
		"pool": func() {
			p := pool("default", 2048, 2)
			p.Spec.Subnets[0].IPv4 = "10.2.0.0/16"
			create(t, &p)
			for i, name := range []string{"node-a", "node-b"} {
				b := block("default", name, i)
				b.IPv4 = []string{"10.2.0.0/27", "10.2.0.32/27"}[i]
				b.Labels = map[string]string{v1alpha1.LabelNode: name, v1alpha1.LabelPool: "default"}
				create(t, &b)
			}
		},
		"none": func() {
			e, c := egress("internet"), egressClient("web-0", "node-a", "internet")
			harness.OK(t, client.IgnoreAlreadyExists(rbacClient(t).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "egress"}})))
			create(t, &e, &c)
		},
		"port": func() {
			v := vpc("blue", is("Ready", metav1.ConditionTrue, "Ready", "", time.Hour))
			create(t, &v)
		},
	} {
		t.Run(ipam, func(t *testing.T) {
			dial, _ := inMode(t, ipam)
			more()
			o := Options{Config: cfg, Dial: dial}
			for _, args := range [][]string{
				{"status"}, {"status", "--details"}, {"node", "node-a"}, {"pod", "default/web-0"}, {"pod", "web-0"}, {"pools"}, {"vpcs"}, {"vpcs", "--details"}, {"egresses"}, {"top"}, {"top", "--details"}, {"events"},
			} {
				for _, form := range []string{"table", "wide", "json", "yaml"} {
					out, code, err := try(t, o, append(slices.Clone(args), "-o", form)...)
					if code != 0 || err != nil || strings.Contains(out, "could not be") || strings.Contains(out, "forbidden") {
						t.Errorf("%v -o %s: exit code = %d, error = %v, want complete output:\n%s", args, form, code, err, out)
					}
					if form == "json" && !json.Valid([]byte(out)) {
						t.Errorf("%v: output is not JSON: %s", args, out)
					}
				}
			}
			out, _, _ := try(t, o, "status", "--details", "-o", "json")
			var s Status
			harness.OK(t, json.Unmarshal([]byte(out), &s))
			if len(s.Nodes) != 2 || s.Totals.Used != 6 || !s.Healthy || s.Nodes[0].Mode != modeOf(ipam) {
				t.Errorf("status = %+v, want two healthy nodes with 6 used addresses", s)
			}
			out, _, _ = try(t, o, "pod", "web-0", "-o", "json")
			var d PodDetails
			harness.OK(t, json.Unmarshal([]byte(out), &d))
			if d.Diagnosis.Verdict != diagnose.Works || len(d.Attachments) != 1 || d.Attachments[0].ENI != "eni-1" {
				t.Errorf("pod = %+v, want verdict Works with one attachment on eni-1", d)
			}
			out, _, _ = try(t, o, "events", "-o", "json")
			var e Events
			harness.OK(t, json.Unmarshal([]byte(out), &e))
			if len(e.Events) != 1 || e.Events[0].Reason != "NetworkSubnetFull" || e.Events[0].Object != "node-a" {
				t.Errorf("events = %+v, want one NetworkSubnetFull about node-a", e)
			}
			for line, want := range map[string]string{
				"node no": "node-a node-b", "node node-b": "node-b", "pod default/w": "default/web-0", "pod w": "web-0", "pod kube-s": "kube-system/", "--berth-namespace kube-s": "kube-system",
				"status -o y": "yaml",
			} {
				out, _, _ := try(t, o, append([]string{"__completeNoDesc"}, strings.Split(line, " ")...)...)
				if got := strings.Join(strings.Fields(strings.Split(out, "\n:")[0]), " "); got != want {
					t.Errorf("completion of %q = %q, want %q", line, got, want)
				}
			}
			if out, _, _ := try(t, o, "__completeNoDesc", "egresses", "egress/i"); ipam == "none" && !strings.HasPrefix(out, "egress/internet\n") {
				t.Errorf("completion of egresses = %q, want egress/internet first", out)
			}
			if out, _, _ := try(t, o, "__completeNoDesc", "pools", ""); ipam == "pool" && !strings.HasPrefix(out, "default\n") {
				t.Errorf("completion of pools = %q, want default first", out)
			}
		})
	}
}

// Without permissions the commands report the failed reads. An unknown name is an error.
func TestMissingPermissionsAndUnknownNames(t *testing.T) {
	ops := person(t)
	dial, _ := inMode(t, "eni")
	eve, err := harness.ControlPlane.ConfigFor("eve")
	harness.OK(t, err)
	for _, args := range [][]string{{"status"}, {"pools"}, {"vpcs"}, {"egresses"}, {"policies"}, {"top"}, {"events"}, {"node", "node-a"}} {
		out, code, _ := try(t, Options{Config: eve, Dial: dial}, args...)
		if !strings.Contains(out, "could not be read") || !strings.Contains(out, `"eve"`) || code == ExitTrouble {
			t.Errorf("%v: exit code %d, want the failed reads\n%s", args, code, out)
		}
	}
	bad := rest.CopyConfig(ops)
	bad.TLSClientConfig = rest.TLSClientConfig{CAData: ops.CAData}
	bad.BearerToken = "nobody's"
	for args, want := range map[string]string{
		"pod default/none": "there is no pod default/none", "pod default/none/x": "expected NAMESPACE/POD", "pod /x": "expected NAMESPACE/POD", "node none": `there is no Node "none"`,
		"pools none": `there is no AddressPool "none"`, "vpcs none": `there is no VPC "none"`, "egresses none": `there is no Egress "default/none"`, "egresses a/b/c": "expected NAMESPACE/EGRESS", "status -o xml": "expected one of table, wide, json, yaml", "status --parallel 0": "--parallel is 0",
		"status --node-timeout 0s": "--node-timeout is 0s", "top --most 0": "--most is 0", "events -f -o yaml": "--follow prints", "node": "accepts 1 arg",
	} {
		if _, code, err := try(t, Options{Config: ops}, strings.Fields(args)...); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, error %v; want error containing %q", args, code, err, want)
		}
	}
	if _, code, err := try(t, Options{Config: eve, Dial: dial}, "pod", "default/web-0"); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("pod without permissions: exit code = %d, error = %v, want %d and an error that it is forbidden", code, err, ExitTrouble)
	}
	if _, code, err := try(t, Options{Config: bad}, "status"); code != ExitTrouble || err == nil || !strings.Contains(err.Error(), "contact the Kubernetes API") {
		t.Errorf("status with a wrong token: exit code = %d, error = %v, want %d and an error about the Kubernetes API", code, err, ExitTrouble)
	}
	if _, code, err := try(t, Options{}, "status", "--kubeconfig", "/none"); code != ExitTrouble || err == nil {
		t.Errorf("status without a kubeconfig: exit code = %d, error = %v, want %d and an error", code, err, ExitTrouble)
	}
	// An unresponsive node has a row, and does not affect the rest of the table.
	out, code, err := try(t, Options{Config: ops, Dial: nobody}, "status")
	if code != ExitUnwell || err != nil || strings.Count(out, "berthd could not be queried: connection refused") != 2 {
		t.Errorf("exit code %d, error %v, want a row for each of the two nodes\n%s", code, err, out)
	}
}

// With the permissions of docs/guides/kubectl-berth.md the commands show each NIC's port, and the reason why it is not
// ready, from objects of the API server.
func TestNICsInVPCs(t *testing.T) {
	cfg := person(t)
	dial, web := inMode(t, "port")
	blue := vpc("blue", is("Ready", metav1.ConditionTrue, "Ready", "", time.Hour))
	create(t, &blue)
	c := harness.KubeClient(t)
	stuck := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stuck", Annotations: map[string]string{v1alpha1.AnnotationVPC: "blue", v1alpha1.AnnotationNICs: "[{nic: db-0}, {}]"}},
		Spec:       corev1.PodSpec{NodeName: "node-b", Containers: []corev1.Container{{Name: "c", Image: "i"}}}, Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	create(t, stuck)
	before := web.DeepCopy()
	web.Annotations = map[string]string{v1alpha1.AnnotationVPC: "blue"}
	harness.OK(t, c.Patch(t.Context(), web, client.MergeFrom(before)))
	of := func(n v1alpha1.PodNIC, pod *corev1.Pod) *v1alpha1.PodNIC {
		n.Spec.Pod = &v1alpha1.PodReference{Name: pod.Name, UID: string(pod.UID)}
		n.Status.Pod, n.Labels[v1alpha1.LabelPodUID] = n.Spec.Pod, string(pod.UID)
		return &n
	}
	works := of(nic("web-0", "node-a", "10.0.0.5"), web)
	waits := of(nic("stuck", "node-b", "192.168.0.9"), stuck)
	waits.Status.Phase, waits.Status.Plug, waits.Status.Node = v1alpha1.PhaseCreated, nil, nil
	waits.Status.Conditions[1] = is("Bound", metav1.ConditionFalse, "BindingFailed", "the provider could not bind the port at host node-b", time.Minute)
	named := of(nic("db-0", "node-b", "192.168.0.20"), stuck)
	named.Name, named.Labels, named.Spec.Pod, named.Spec.Interface = "db-0", nil, nil, ""
	forged := nic("forged", "node-b", "192.168.0.66") // its label names another pod
	forged.Labels[v1alpha1.LabelPodUID] = string(web.UID)
	create(t, works, waits, named, &forged)
	o := Options{Config: cfg, Dial: dial}

	out, code, err := try(t, o, "pod", "default/stuck")
	for _, want := range []string{"NotBound", "BindingFailed", "port-stuck", "192.168.0.9/24", "02:00:00:00:00:01", "host-node-b", "Created", "agent runs on the node", "port-db-0"} {
		if !strings.Contains(out, want) {
			t.Errorf("pod: output lacks %q:\n%s", want, out)
		}
	}
	if code != ExitUnwell || err != nil || strings.Contains(out, "could not be read") {
		t.Errorf("pod: exit code = %d, error = %v, want %d and complete output:\n%s", code, err, ExitUnwell, out)
	}
	var d PodDetails
	out, _, _ = try(t, o, "pod", "web-0", "-o", "json")
	harness.OK(t, json.Unmarshal([]byte(out), &d))
	if len(d.NICs) != 1 || d.NICs[0].Port != "port-web-0" || d.NICs[0].Diagnosis.Verdict != diagnose.Works || d.Diagnosis.Verdict != diagnose.Works {
		t.Errorf("pod = %+v, want verdict Works with one NIC", d)
	}
	var list VPCs
	out, code, err = try(t, o, "vpcs", "blue", "--details", "-o", "json")
	harness.OK(t, json.Unmarshal([]byte(out), &list))
	if v := list.VPCs[0]; code != ExitUnwell || err != nil || v.NICs != 4 || len(v.Troubled) != 1 || v.Troubled[0].Name != "stuck-eth0" || v.Troubled[0].Diagnosis.Verdict != diagnose.NotBound {
		t.Errorf("vpcs: exit code = %d, error = %v, output = %+v, want %d and stuck-eth0 as the only troubled one of 4 NICs", code, err, list, ExitUnwell)
	}
	var n NodeDetails
	out, code, _ = try(t, o, "node", "node-b", "-o", "json")
	harness.OK(t, json.Unmarshal([]byte(out), &n))
	if code != ExitUnwell || len(n.Ports) != 3 || !slices.ContainsFunc(n.Trouble, func(s string) bool { return strings.Contains(s, "NotBound") }) {
		t.Errorf("node: exit code = %d, output = %+v, want %d and 3 ports, of which one is not bound", code, n, ExitUnwell)
	}
	out, code, _ = try(t, o, "status")
	if code != ExitUnwell || !strings.Contains(out, "VPC blue:") || !strings.Contains(out, "! node-b: NotBound") || strings.Contains(out, "! node-a") {
		t.Errorf("status: exit code = %d, want %d and trouble on node-b only:\n%s", code, ExitUnwell, out)
	}
	if out, _, _ := try(t, o, "__completeNoDesc", "vpcs", "b"); !strings.HasPrefix(out, "blue\n") {
		t.Errorf("completion of vpcs = %q, want blue first", out)
	}
}

// With the permissions of docs/guides/kubectl-berth.md the commands show pods that name missing Egresses, including
// host-network pods.
func TestPodsThatNameMissingEgresses(t *testing.T) {
	cfg := person(t)
	dial, _ := inMode(t, "none")
	host := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "host", Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + "egress": "internet"}},
		Spec:       corev1.PodSpec{NodeName: "node-a", HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	create(t, host)
	refused, lacks := egressClient("host", "node-a"), egressClient("web-0", "node-a")
	refused.Spec.PodUID = string(host.UID)
	refused.Spec.Refused = []v1alpha1.EgressRefusal{{Namespace: "egress", Name: "internet", Reason: "Invalid", Message: "names Egress egress/internet, which a host-network pod cannot use", Named: true}}
	refused.Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "Invalid", refused.Spec.Refused[0].Message, time.Minute)
	lacks.Spec.Refused = []v1alpha1.EgressRefusal{{Namespace: "egress", Name: "none", Reason: "NotFound", Message: "there is no Egress egress/none", Named: true}}
	lacks.Status.Conditions[0] = is("Ready", metav1.ConditionFalse, "NotFound", "there is no Egress egress/none", time.Minute)
	create(t, &refused, &lacks)
	o := Options{Config: cfg, Dial: dial}
	for args, wants := range map[string][]string{
		"status":           {"! Egress egress/none: the Egress does not exist", "EgressRefused: default/host", "CLIENTS"},
		"egresses":         {"! egress/none: the Egress does not exist", "Other clients that need attention", "! default/host: It may not use an Egress (Invalid)"},
		"pod default/host": {"EgressRefused", "a host-network pod cannot use"},
	} {
		out, code, err := try(t, o, strings.Fields(args)...)
		for _, want := range wants {
			if code != ExitUnwell || err != nil || !strings.Contains(out, want) || strings.Contains(out, "could not be read") {
				t.Errorf("%s: exit code %d, error %v, want output with %q:\n%s", args, code, err, want, out)
			}
		}
	}
}

// Lists of a large cluster are read page by page: those of Kubernetes as protobuf, those of Berth as JSON.
func TestListsArePaginated(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	const size = 3
	for i := range size + 2 {
		b := block("default", "node-a", i)
		b.IPv4 = "10.2.0.0/32"
		harness.OK(t, c.Create(t.Context(), &b))
		harness.OK(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}))
	}
	types := map[string][]string{} // by path
	cfg := harness.ControlPlane.Config()
	cfg.Wrap(harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		got, err := next.RoundTrip(r)
		if err == nil {
			types[r.URL.Path] = append(types[r.URL.Path], got.Header.Get("Content-Type"))
		}
		return got, err
	}))
	a, err := (&program{Options: Options{Config: cfg}}).connect()
	harness.OK(t, err)
	check.Equal(t, a.rest.page, pageSize, "objects a request")
	a.rest.page = size
	check.Equal(t, len(a.blocks(t.Context(), "")), size+2, "blocks")
	var names []string
	for _, n := range a.nodes(t.Context()) {
		names = append(names, n.Name)
	}
	check.Equal(t, names, []string{"node-0", "node-1", "node-2", "node-3", "node-4"}, "nodes")
	check.Equal(t, types, map[string][]string{
		blocksPath: {runtime.ContentTypeJSON, runtime.ContentTypeJSON},
		nodesPath:  {runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf},
	}, "media types of the replies")
	check.Equal(t, len(a.unread), 0, "failed reads")
}

// The API server sends errors in the media type that a list is requested in.
func TestForbiddenListsNameTheReason(t *testing.T) {
	cfg := harness.ControlPlane.Config()
	cfg.Impersonate.UserName = "nobody"
	a, err := (&program{Options: Options{Config: cfg}}).connect()
	harness.OK(t, err)
	a.nodes(t.Context())
	a.networks(t.Context())
	for i, resource := range []string{"nodes", "nodenetworks.berth.dev"} {
		if want := resource + ` is forbidden: User "nobody" cannot list resource`; len(a.unread) != 2 || !strings.Contains(a.unread[i], want) {
			t.Errorf("failed reads are %q, want two, of which number %d with %q", a.unread, i, want)
		}
	}
}

// lines is a writer that reports each line.
type lines struct {
	mu   sync.Mutex // guards the fields below
	all  bytes.Buffer
	seen chan struct{}
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.all.Write(b)
	select {
	case l.seen <- struct{}{}:
	default:
	}
	return n, err
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func TestFollowEvents(t *testing.T) {
	cfg := person(t)
	inMode(t, "eni-operator")
	out := &lines{seen: make(chan struct{}, 1)}
	cmd := New(Options{Config: cfg})
	cmd.SetArgs([]string{"events", "--follow"})
	cmd.SetOut(out)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	wait := func(text string) {
		t.Helper()
		limit := time.After(harness.Patience)
		for !strings.Contains(out.String(), text) {
			select {
			case <-out.seen:
			case err := <-done:
				t.Fatalf("events --follow ended: %v\n%s", err, out)
			case <-limit:
				t.Fatalf("output lacks %q:\n%s", text, out)
			}
		}
	}
	wait("NetworkSubnetFull Node node-a: subnet-1 is full")
	create(t, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "node-a.2"}, Type: corev1.EventTypeNormal, Reason: "NetworkHealed", Message: "The node's addresses are managed again.",
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-a"}, ReportingController: connect.OperatorName, ReportingInstance: "x",
		Action: "ManageAddresses", EventTime: metav1.NewMicroTime(time.Now()),
	})
	wait("NetworkHealed")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("interrupted command: error = %v, want nil", err)
	}
	if strings.Contains(out.String(), "Scheduled") {
		t.Errorf("events of other software are printed:\n%s", out)
	}
}
