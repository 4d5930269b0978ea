package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/host"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/proc"
)

// podTimeout bounds the making of a pod whose request names no time.
const podTimeout = 90 * time.Second

// server answers for one lab.
type server struct {
	lab    *lab.Lab
	faults *faults
	down   chan struct{} // closed when the lab was ended by request
	podSeq atomic.Int64
}

func newServer(l *lab.Lab) *server {
	return &server{lab: l, faults: &faults{cloud: l.Cloud}, down: make(chan struct{})}
}

// listen opens the control socket, for root only.
func listen(dir string) (net.Listener, error) {
	path := SocketPath(dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove a stale control socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the control socket: %w", err)
	}
	return l, os.Chmod(path, 0o600)
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", answerWith(s.status))
	mux.HandleFunc("GET /v1/target", answerWith(s.target))
	mux.HandleFunc("POST /v1/pods", answerWith(s.addPod))
	mux.HandleFunc("DELETE /v1/pods/{node}/{name}", answerWith(s.delPod))
	mux.HandleFunc("POST /v1/programs/{name}/kill", answerWith(s.kill))
	mux.HandleFunc("POST /v1/programs/{name}/start", answerWith(s.start))
	mux.HandleFunc("GET /v1/calls", answerWith(s.calls))
	mux.HandleFunc("GET /v1/faults", answerWith(s.listFaults))
	mux.HandleFunc("POST /v1/faults", answerWith(s.addFault))
	mux.HandleFunc("DELETE /v1/faults", answerWith(s.clearFaults))
	mux.HandleFunc("POST /v1/down", answerWith(s.end))
	return mux
}

// answerWith turns a function into a handler that speaks JSON.
func answerWith(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			v = failure{err.Error()}
		}
		_ = json.NewEncoder(w).Encode(v)
	}
}

func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	return nil
}

func (s *server) status(r *http.Request) (any, error) {
	st, err := s.lab.Status(r.Context())
	st.Faults = s.faults.strings()
	return st, err
}

// target finds "node" or "node/pod", or one of the outside hosts.
func (s *server) target(r *http.Request) (any, error) {
	name := r.URL.Query().Get("name")
	switch name {
	case "internet":
		return Target{Netns: s.lab.OutsidePath()}, nil
	case "onprem":
		if s.lab.Fabric == nil {
			return nil, fmt.Errorf("there is no on-premises host in %s mode", s.lab.Mode)
		}
		return Target{Netns: s.lab.Fabric.OnPremPath()}, nil
	case "vpc":
		t := Target{Netns: s.lab.RouterPath()}
		if s.lab.Kube != nil {
			t.Env = []string{"KUBECONFIG=" + s.lab.Kube.AdminKubeconfig()}
		}
		return t, nil
	}
	nodeName, podName, inPod := strings.Cut(name, "/")
	n, err := s.lab.Node(nodeName)
	if err != nil {
		return nil, err
	}
	t := Target{Netns: n.Netns, Env: []string{"VPCLAB_NODE=" + n.Name, "BERTH_SOCKET=" + n.Socket()}}
	if s.lab.Cloud != nil {
		t.Env = append(t.Env, "AWS_ENDPOINT_URL_EC2="+lab.EC2URL, "AWS_REGION="+s.lab.Cloud.Region())
	}
	if s.lab.Kube != nil {
		t.Env = append(t.Env, "KUBECONFIG="+s.lab.Kube.AdminKubeconfig())
	}
	if s.lab.Kubelets != nil {
		return s.machineTarget(nodeName, t, inPod)
	}
	if inPod {
		p, err := n.Pod(podName)
		if err != nil {
			return nil, err
		}
		t.Netns = p.Netns()
	}
	return t, nil
}

// machineTarget makes a whole machine a target, with its files and programs.
func (s *server) machineTarget(name string, t Target, inPod bool) (any, error) {
	if inPod {
		return nil, errKubectl
	}
	h, err := s.lab.Machine(name)
	if err != nil {
		return nil, err
	}
	if !h.On() {
		return nil, fmt.Errorf("%s is off", name)
	}
	t.Mounts = h.MountsPath()
	t.Env = machineEnv(t.Env)
	return t, nil
}

// machineEnv replaces what differs on a machine with files of its own. Of two variables of one name programs take the
// first.
func machineEnv(env []string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, "BERTH_SOCKET=") })
	return append(env, "PATH="+host.Path, "BERTH_SOCKET=/run/berth/berthd.sock")
}

var errKubectl = errors.New("pods of a lab with kubelets are the cluster's: use kubectl, with the KUBECONFIG that status shows")

func (s *server) addPod(r *http.Request) (any, error) {
	var q PodRequest
	if err := decode(r, &q); err != nil {
		return nil, err
	}
	if s.lab.Kubelets != nil {
		return nil, errKubectl
	}
	n, err := s.lab.Node(q.Node)
	if err != nil {
		return nil, err
	}
	timeout := podTimeout
	if q.Timeout != "" {
		if timeout, err = time.ParseDuration(q.Timeout); err != nil {
			return nil, fmt.Errorf("timeout: %w", err)
		}
	}
	if q.Name == "" {
		q.Name = s.podName(n)
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	began := time.Now()
	p, err := n.AddPod(ctx, q.Name, node.PodOptions{Namespace: q.Namespace, Ports: q.Ports, Annotations: q.Annotations})
	if err != nil {
		return nil, err
	}
	reply := PodReply{Name: p.Name, Took: time.Since(began).Round(100 * time.Microsecond).String()}
	for _, a := range p.Addrs {
		reply.Addresses = append(reply.Addresses, a.String())
	}
	return reply, nil
}

// podName chooses a name that the node has not.
func (s *server) podName(n *node.Node) string {
	for {
		name := fmt.Sprintf("pod-%d", s.podSeq.Add(1))
		if _, err := n.Pod(name); err != nil {
			return name
		}
	}
}

func (s *server) delPod(r *http.Request) (any, error) {
	if s.lab.Kubelets != nil {
		return nil, errKubectl
	}
	n, err := s.lab.Node(r.PathValue("node"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), podTimeout)
	defer cancel()
	return struct{}{}, n.DelPod(ctx, r.PathValue("name"))
}

func (s *server) kill(r *http.Request) (any, error) {
	if h, err := s.lab.Machine(r.PathValue("name")); err == nil {
		return s.pullPlug(r, h)
	}
	p, err := s.program(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	if !p.Running() {
		return nil, fmt.Errorf("%s does not run", p)
	}
	if err := p.Kill(); err != nil || r.URL.Query().Get("restart") != "true" {
		return p.String(), err
	}
	return p.String(), p.start(r.Context())
}

// pullPlug is kill for a whole machine.
func (s *server) pullPlug(r *http.Request, h *host.Host) (any, error) {
	if !h.On() {
		return nil, fmt.Errorf("%s is off", h.Name)
	}
	if err := s.lab.PowerOff(h.Name); err != nil || r.URL.Query().Get("restart") != "true" {
		return h.Name, err
	}
	return h.Name, s.lab.PowerOn(r.Context(), h.Name)
}

func (s *server) start(r *http.Request) (any, error) {
	if h, err := s.lab.Machine(r.PathValue("name")); err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), podTimeout)
		defer cancel()
		return h.Name, s.lab.PowerOn(ctx, h.Name)
	}
	p, err := s.program(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), podTimeout)
	defer cancel()
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return p.String(), p.ready(ctx)
}

// program is what kill and start act on.
type program struct {
	*proc.Process
	start func(context.Context) error
	ready func(context.Context) error // returns when the started program is ready
}

// program finds one: a node's berthd by the node's name, an operator or the API
// server by its own.
func (s *server) program(name string) (program, error) {
	if k := s.lab.Kube; k != nil && name == k.APIServer.String() {
		started := func(context.Context) error { return nil } // is ready
		return program{k.APIServer, k.StartAPIServer, started}, nil
	}
	start := func(p *proc.Process) func(context.Context) error {
		return func(context.Context) error { return p.Start() }
	}
	for _, o := range s.lab.Operators() {
		if o.Name == name {
			return program{o.Process, start(o.Process), o.WaitReady}, nil
		}
	}
	n, err := s.lab.Node(name)
	if err != nil {
		return program{}, err
	}
	return program{n.Process, start(n.Process), n.WaitReady}, nil
}

// calls lists the log behind the call that the query names.
func (s *server) calls(r *http.Request) (any, error) {
	if s.lab.Cloud == nil {
		return nil, fmt.Errorf("there are no EC2 calls in %s mode", s.lab.Mode)
	}
	after, err := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("after: %w", err)
	}
	return s.lab.Cloud.API.CallsAfter(after), nil
}

func (s *server) listFaults(*http.Request) (any, error) { return s.faults.strings(), nil }

func (s *server) addFault(r *http.Request) (any, error) {
	var q FaultRequest
	if err := decode(r, &q); err != nil {
		return nil, err
	}
	return struct{}{}, s.faults.add(q)
}

// clearFaults clears those of the kind that the query names, or all.
func (s *server) clearFaults(r *http.Request) (any, error) {
	kind := r.URL.Query().Get("kind")
	return s.faults.clear(func(f FaultRequest) bool { return kind == "" || f.Kind == kind }), nil
}

// end closes the lab and reports what that removed; then the process exits.
func (s *server) end(*http.Request) (any, error) {
	removed, err := ns.List(fabric.Prefix(s.lab.ID))
	if err != nil {
		return nil, err
	}
	if err := s.lab.Close(); err != nil {
		return nil, err
	}
	defer close(s.down)
	return DownReply{Removed: removed}, nil
}
