package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/web"
	webplanner "github.com/berthnet/berth/web/planner"
)

// front serves metrics, probes and settings for the lifetime of the operator.
type front struct {
	log     *slog.Logger
	serving sync.WaitGroup
	stop    context.CancelFunc

	mu           sync.Mutex // guards ready and alive
	ready, alive check
}

// check returns nil if all is well. It may block until ctx ends.
type check func(ctx context.Context) error

// probeTimeout is shorter than the timeout of the Deployment's probes.
const probeTimeout = 5 * time.Second

var errStarting = errors.New("starting")

// newFront starts serving immediately, until close. The error names the flag of an address that cannot be listened on.
func newFront(cfg config.Operator, metrics prometheus.Gatherer, log *slog.Logger) (*front, error) {
	f := &front{
		log:   log,
		ready: func(context.Context) error { return errStarting },
		alive: func(context.Context) error { return nil },
	}
	scrape, profiles := http.NewServeMux(), http.NewServeMux()
	web.HandleMetrics(scrape, metrics)
	web.HandleProfiles(profiles)
	plans := http.NewServeMux()
	plans.Handle("/", web.LocalOnly(planner.Handler(webplanner.Page, planner.ServeOptions{Simulate: planner.InChild})))
	monitoring, probes := f.probes(), f.probes()
	monitoring.Handle("GET /metrics", scrape)
	servers := []struct {
		flag, address string
		mux           *http.ServeMux
		local         map[string]http.Handler // also served on loopback addresses, by pattern
		body          int                     // maximum size of a request's body; 0: none
		listener      net.Listener
	}{
		{flag: "metrics-address", address: cfg.MetricsAddr, mux: monitoring, local: map[string]http.Handler{settingsPattern: settings(cfg)}},
		{flag: "health-address", address: cfg.HealthAddr, mux: probes, local: map[string]http.Handler{settingsPattern: settings(cfg), "GET /metrics": scrape}},
		{flag: "pprof-address", address: cfg.PprofAddr, mux: profiles},
		{flag: "planner-address", address: cfg.PlannerAddr, mux: plans, body: planner.MaxSize},
	}
	var err error
	for i := range servers {
		l, listenErr := web.Listen(servers[i].flag, servers[i].address)
		servers[i].listener, err = l, errors.Join(err, listenErr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	for _, s := range servers {
		if s.listener == nil {
			continue
		}
		if err != nil {
			err = errors.Join(err, s.listener.Close())
			continue
		}
		for pattern, handler := range s.local {
			if web.OnLoopback(s.listener) {
				s.mux.Handle(pattern, web.LocalOnly(handler))
			}
		}
		log.Info("serving", "flag", s.flag, "address", s.listener.Addr().String())
		f.serving.Go(func() {
			if err := web.Serve(ctx, s.listener, s.mux, web.Options{MaxBody: s.body}); err != nil {
				log.Error("a web server failed", "flag", s.flag, "err", err)
			}
		})
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return f, nil
}

// watch replaces the checks behind the probes.
func (f *front) watch(ready, alive check) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready, f.alive = ready, alive
}

// wait sets the reason why the operator is not ready yet, for the readiness probe.
func (f *front) wait(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready = func(context.Context) error { return why }
}

const settingsPattern = "GET " + introspect.SettingsPath

// settings serves the operator's settings.
func settings(cfg config.Operator) http.Handler {
	s := introspect.Settings{Version: version.String(), Settings: cfg.Effective, Unknown: cfg.Unknown}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { web.WriteJSON(w, s) })
}

// probes are served on every listener except the one for profiles.
func (f *front) probes() *http.ServeMux {
	mux := http.NewServeMux()
	ask := func(which *check) func() error {
		return func() error {
			f.mu.Lock()
			c := *which
			f.mu.Unlock()
			ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
			defer cancel()
			return c(ctx)
		}
	}
	web.HandleProbe(mux, "/readyz", ask(&f.ready))
	web.HandleProbe(mux, "/livez", ask(&f.alive))
	web.HandleStartup(mux, "/startupz", ask(&f.ready))
	return mux
}

func (f *front) close() {
	f.stop()
	f.serving.Wait()
}

// answers returns a check that fails while work, which is normally quick, does not return, for example because a lock that everything needs is
// never released.
func answers(what string, work func()) check {
	var attempts singleflight.Group // hanging calls must not pile up
	return func(ctx context.Context) error {
		done := attempts.DoChan("", func() (any, error) {
			work()
			return nil, nil
		})
		select {
		case <-done:
			return nil
		case <-ctx.Done():
		}
		select {
		case <-done: // it returned while this process was suspended
			return nil
		default:
			return fmt.Errorf("%s does not answer", what)
		}
	}
}
