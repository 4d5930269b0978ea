package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/podnic"
	"github.com/berthnet/berth/internal/web"
)

// Path is where requests are answered.
const Path = "/validate"

// Options are what the webhook is set up with.
type Options struct {
	Listener  net.Listener // closed by the manager's end; nil: no webhook
	Namespace string       // the operator's own
	First     podnic.First // of pods with NICs
	Clock     clock.Clock
	Logger    *slog.Logger
}

// Setup has a manager serve the webhook, leading or not. It needs a cache of VPCs and
// of Namespaces' metadata.
func Setup(mgr manager.Manager, o Options) error {
	if o.Listener == nil {
		return nil
	}
	k := &keeper{
		store: objects{mgr.GetAPIReader(), mgr.GetClient(), o.Namespace},
		names: names(o),
		leads: func() bool {
			select {
			case <-mgr.Elected():
				return true
			default:
				return false
			}
		},
		every: look, clock: o.Clock, log: o.Logger,
	}
	hook, err := admission.StandaloneWebhook(
		&admission.Webhook{Handler: judge{admission.NewDecoder(mgr.GetScheme()), mgr.GetClient(), mgr.GetAPIReader(), o.First}},
		admission.StandaloneOptions{Logger: logr.Discard()},
	)
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+Path, hook)
	serve := func(ctx context.Context) error {
		err := web.ServeTLS(ctx, o.Listener, mux, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: k.certificate})
		if err != nil {
			return fmt.Errorf("webhook: %w", err)
		}
		return nil
	}
	return errors.Join(mgr.Add(always(serve)), mgr.Add(always(k.run)))
}

// names are those by which the API server may know this operator: its Service, and,
// for one that is told a URL, the address that it listens at.
func names(o Options) []string {
	list := []string{ServiceName + "." + o.Namespace + ".svc"}
	if at, err := netip.ParseAddrPort(o.Listener.Addr().String()); err == nil && !at.Addr().IsUnspecified() {
		list = append(list, at.Addr().String())
	}
	return list
}

// always is what runs in every operator, leading or not.
type always func(context.Context) error

// Start implements manager.Runnable.
func (a always) Start(ctx context.Context) error { return a(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (always) NeedLeaderElection() bool { return false }
