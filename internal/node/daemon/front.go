package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/listener"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/heartbeat"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/web"
)

// FrontOptions configure a Front.
type FrontOptions struct {
	Plugin        net.Listener // the plugin's socket; see Listen
	Introspection net.Listener // for /ip-manager, on a loopback address; optional
	Monitoring    net.Listener // for metrics and probes; optional
	Pprof         bool         // serve profiles on Introspection
	// Tell receives events of ADDs that wait long, fail, or eventually succeed. It does not block.
	// Optional.
	Tell     func(podevents.News)
	Socket   string // path of Plugin's socket; the heartbeat file is beside it
	Settings introspect.Settings
	Metrics  *Metrics
	Clock    clock.Clock
	Log      *slog.Logger
}

// Front serves the plugin and monitoring from the start of the program, while the daemon behind it
// may still wait for the metadata service or recover. Until a Daemon is admitted, a call waits for a
// short time and then fails with the reason that delays the start.
type Front struct {
	FrontOptions
	server *grpc.Server
	checks *health.Server
	failed chan error // capacity 1: error of the plugin's server
	web    sync.WaitGroup
	stop   context.CancelFunc // stops the web servers

	early  waitingADDs   // ADDs that wait for the daemon
	ready  chan struct{} // closed when daemon is set
	daemon *Daemon

	mu      sync.Mutex // guards waiting
	waiting string
}

// Limits of the plugin's socket. The plugin opens one connection per call. Together with the web
// listeners' connections these use half of 1,024 descriptors, the usual limit of a process.
const (
	pluginConnections = 256
	pluginStreams     = 64               // calls at a time on one connection
	handshakeTimeout  = 10 * time.Second // for a connection's first frames
	pluginIdle        = time.Minute      // without a call in flight
	// pluginOpening is how long a connection may take from its first byte to the end of its request
	// before others may replace it. It is shorter than the plugin's wait for a STATUS; the plugin
	// sends a request without delay.
	pluginOpening = 2 * time.Second
)

// NewFront returns a Front that serves until Close.
func NewFront(o FrontOptions) *Front {
	f := &Front{FrontOptions: o, ready: make(chan struct{}), failed: make(chan error, 1), waiting: "reading its settings"}
	f.server = grpc.NewServer(
		grpc.UnaryInterceptor(f.intercept),
		grpc.MaxRecvMsgSize(16<<20), // a GC lists all attachments of the node
		grpc.StaticConnWindowSize(1<<20), grpc.StaticStreamWindowSize(1<<20),
		grpc.MaxConcurrentStreams(pluginStreams), grpc.ConnectionTimeout(handshakeTimeout), grpc.Creds(newKnownConns()),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: pluginIdle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	rpc.RegisterNodeServer(f.server, &service{front: f})
	f.checks = health.NewServer()
	f.setHealth(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(f.server, f.checks)
	go func() {
		limits := listener.Limits{Total: pluginConnections, Opening: pluginOpening}
		if err := f.server.Serve(listener.Limit(o.Plugin, limits)); err != nil {
			f.failed <- fmt.Errorf("serving the plugin: %w", err)
		}
	}()
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	f.serveWeb(ctx, "introspection", o.Introspection, f.introspectionHandler())
	f.serveWeb(ctx, "monitoring", o.Monitoring, f.monitoringHandler())
	return f
}

// serveWeb serves one of the web listeners. The daemon continues if it fails.
func (f *Front) serveWeb(ctx context.Context, what string, l net.Listener, h http.Handler) {
	f.web.Go(func() {
		if err := web.Serve(ctx, l, h, web.Options{}); err != nil {
			f.Log.Error("a web listener stopped", "listener", what, "err", err)
		}
	})
}

// Close ends all calls and closes all listeners immediately.
func (f *Front) Close() {
	f.server.Stop()
	f.stop()
	f.web.Wait()
}

func (f *Front) setHealth(s grpc_health_v1.HealthCheckResponse_ServingStatus) {
	f.checks.SetServingStatus("", s)
	f.checks.SetServingStatus(rpc.Node_ServiceDesc.ServiceName, s)
}

// WaitingFor sets the reason that delays the start, for errors and probes.
func (f *Front) WaitingFor(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = what
}

func (f *Front) waitingFor() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting
}

// admit lets calls through to a daemon that has recovered. It is called once.
func (f *Front) admit(d *Daemon) {
	f.daemon = d
	close(f.ready)
	f.setHealth(grpc_health_v1.HealthCheckResponse_SERVING)
}

// admitted returns the daemon, or nil while it is starting.
func (f *Front) admitted() *Daemon {
	select {
	case <-f.ready:
		return f.daemon
	default:
		return nil
	}
}

// startWait is how long a call waits for a daemon that is starting.
const startWait = 10 * time.Second

// intercept wraps every call. Health checks pass immediately; all other calls wait for the daemon. Errors become
// gRPC statuses that the plugin understands.
func (f *Front) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	defer atWork(ctx)()
	verb := verbOf(info.FullMethod)
	if verb == "" {
		return handle(ctx, req)
	}
	watch := f.follow(req)
	reply, err := f.serve(ctx, verb, req, handle)
	watch.end(reply, err)
	if err != nil {
		return nil, cnierror.Of(err).GRPCStatus().Err()
	}
	return reply, nil
}

// serve handles a call of the plugin once the daemon is admitted.
func (f *Front) serve(ctx context.Context, verb string, req any, handle grpc.UnaryHandler) (any, error) {
	if d := f.admitted(); d != nil {
		return d.observe(ctx, verb, req, handle)
	}
	switch verb {
	case "Status":
		return f.statusWhileStarting()
	case "GC": // after a wait its list would lack attachments that were added in the meantime
		return nil, f.starting(verb, 0)
	}
	patience := ctx
	if verb == "Add" {
		var leave func()
		patience, leave = f.early.enter(ctx)
		defer leave()
	}
	wait := startWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-replyMargin)
	}
	select {
	case <-f.ready:
		return f.daemon.observe(ctx, verb, req, handle)
	case <-patience.Done():
		return nil, context.Cause(patience)
	case <-f.Clock.After(wait):
		return nil, f.starting(verb, wait)
	}
}

// starting returns the error of a call that timed out waiting for the daemon.
func (f *Front) starting(verb string, waited time.Duration) error {
	e := cnierror.New(types.ErrTryAgainLater, "starting", "berthd is starting: %s", f.waitingFor())
	f.Metrics.observeCall(verb, "failure", e.Reason, waited)
	return e
}

// statusWhileStarting succeeds during the restart of a daemon that was healthy a moment ago, because a failing
// STATUS would get the node's pods evicted.
func (f *Front) statusWhileStarting() (any, error) {
	if heartbeat.Recent(f.Socket, f.Clock.Boot()) {
		return &rpc.StatusReply{}, nil
	}
	return nil, cnierror.New(types.ErrPluginNotAvailable, "starting", "berthd is starting: %s", f.waitingFor())
}

// drain stops accepting calls, and waits for those in flight until timeout.
func (f *Front) drain(timeout time.Duration) {
	f.checks.Shutdown()
	done := make(chan struct{})
	go func() {
		f.server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-f.Clock.After(timeout):
		f.Log.Warn("calls did not end in time; the next start finishes them", "timeout", timeout)
		f.server.Stop()
	}
}

// readiness returns nil while the plugin is served and the node can accept pods.
func (f *Front) readiness() error {
	d := f.admitted()
	switch {
	case d == nil:
		return errors.New("starting: " + f.waitingFor())
	case d.draining.Err() != nil:
		return part.ErrDraining
	}
	return errors.Join(d.status(), d.writable.err())
}

// introspectionHandler serves data that is visible on this machine only.
func (f *Front) introspectionHandler() http.Handler {
	mux := http.NewServeMux()
	behind := func(serve func(*inspector, http.ResponseWriter, *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if d := f.admitted(); d != nil {
				serve(d.inspector, w, r)
				return
			}
			http.Error(w, "berthd is starting: "+f.waitingFor(), http.StatusServiceUnavailable)
		}
	}
	mux.HandleFunc("GET "+introspect.Path, behind((*inspector).serveDocument))
	mux.HandleFunc("GET "+introspect.PodPath, behind((*inspector).servePod))
	mux.HandleFunc("GET "+introspect.NetworkPoliciesPath, behind((*inspector).servePolicies))
	mux.HandleFunc("GET "+introspect.PolicyJudgePath, behind((*inspector).serveJudgement))
	mux.HandleFunc("GET "+introspect.SettingsPath, func(w http.ResponseWriter, _ *http.Request) { web.WriteJSON(w, f.Settings) })
	f.handleProbes(mux) // Kubernetes probes here even without Monitoring
	if f.Pprof {
		web.HandleProfiles(mux)
	}
	return web.LocalOnly(mux)
}

// callLimit bounds calls without a deadline, or with a later one. An ADD may in addition wait for its address
// and parts.
const callLimit = 60 * time.Second

// observe handles a call with a deadline, turns a panic into an error and every error into a Failure,
// and logs and counts the call.
func (d *Daemon) observe(ctx context.Context, verb string, req any, handle grpc.UnaryHandler) (reply any, err error) {
	limit := callLimit
	if verb == "Add" {
		limit += d.attachments.acquirer.longestWait()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	reply, err = recovered(ctx, d, verb, req, handle)
	took := time.Since(start)
	if err == nil {
		d.Metrics.observeCall(verb, "success", "", took)
		return reply, nil
	}
	f := cnierror.Of(err)
	if f.Code == cnierror.CodeRecord {
		d.writable.failed.Set()
	}
	d.Metrics.observeCall(verb, "failure", f.Reason, took)
	args := []any{"verb", strings.ToUpper(verb), "took", took.Round(time.Microsecond), "code", f.Code, "reason", f.Reason, "err", f}
	if a, ok := req.(interface{ GetAttachment() *rpc.Attachment }); ok {
		args = append(args, "container", a.GetAttachment().GetContainerId(), "interface", a.GetAttachment().GetIfName())
	}
	d.Log.Warn("call failed", args...)
	return nil, f
}

// verbOf returns the CNI verb of a gRPC method, or "" for other services, which are health checks.
func verbOf(fullMethod string) string {
	verb, _ := strings.CutPrefix(fullMethod, "/"+rpc.Node_ServiceDesc.ServiceName+"/")
	if verb == fullMethod {
		return ""
	}
	return verb
}

// recovered handles a call and returns a panic as an error.
func recovered(ctx context.Context, d *Daemon, verb string, req any, handle grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			d.Log.Error("panic in a call", "verb", verb, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			f := cnierror.Of(fmt.Errorf("panic: %v", p))
			f.Reason = "panic"
			reply, err = nil, f
		}
	}()
	return handle(ctx, req)
}

// monitoringHandler serves metrics and probes.
func (f *Front) monitoringHandler() http.Handler {
	mux := http.NewServeMux()
	web.HandleMetrics(mux, f.Metrics.Registry)
	f.handleProbes(mux)
	return mux
}

func (f *Front) handleProbes(mux *http.ServeMux) {
	web.HandleProbe(mux, "/livez", func() error { return nil })
	web.HandleProbe(mux, "/readyz", f.readiness)
	web.HandleStartup(mux, "/startupz", f.readiness)
}
