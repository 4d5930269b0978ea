package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/nicrequest"
	"github.com/berthnet/berth/internal/web"
)

// The paths of the webhooks.
const (
	Path       = "/validate"
	MutatePath = "/mutate"   // with Options.Branches only
	PolicyPath = "/policies" // with Options.Policies only
)

// Options are the settings of the webhook.
type Options struct {
	Listener  net.Listener     // closed when the manager ends; nil: no webhook
	Clients   []netip.Prefix   // clients beside the API server and the nodes
	Namespace string           // the operator's own
	First     nicrequest.First // of pods with NICs
	Branches  bool             // add requests for branch interfaces to pods
	Policies  Policies         // give pods NICs; nil: there are none
	Clock     clock.Clock
	Logger    *slog.Logger
	Metrics   *Metrics // nil: not exported
}

// maxReview is the largest request in bytes: two objects of the largest size that the API server accepts
// (controller-runtime has the same limit).
const maxReview = 7 << 20

// Setup has a manager serve the webhook, whether it leads or not. Its cache must have VPCs, Nodes and the metadata of
// Namespaces. It returns the metrics to register besides Options.Metrics.
func Setup(mgr manager.Manager, o Options) ([]prometheus.Collector, error) {
	if o.Listener == nil {
		return nil, nil
	}
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	k := &keeper{
		store: clusterStore{mgr.GetAPIReader(), mgr.GetClient(), o.Namespace, o.Branches || o.Policies != nil},
		names: names(o),
		leads: func() bool {
			select {
			case <-mgr.Elected():
				return true
			default:
				return false
			}
		},
		every: look, clock: o.Clock, log: o.Logger, metrics: o.Metrics,
	}
	r := reviewer{admission.NewDecoder(mgr.GetScheme()), mgr.GetClient(), mgr.GetAPIReader(), o.Policies, o.First, o.Clock, o.Metrics}
	handlers := map[string]admission.Handler{Path: admission.HandlerFunc(r.validate)}
	if o.Branches {
		handlers[MutatePath] = r.counted(ofBranches, r.askForBranches)
	}
	if o.Policies != nil {
		handlers[PolicyPath] = r.counted(ofPolicies, r.applyPolicy)
	}
	mux := http.NewServeMux()
	for path, handler := range handlers {
		hook, err := admission.StandaloneWebhook(&admission.Webhook{Handler: handler}, admission.StandaloneOptions{Logger: logr.Discard()})
		if err != nil {
			return nil, fmt.Errorf("webhook: %w", err)
		}
		mux.Handle("POST "+path, hook)
	}
	from := &clients{
		servers: serversOf(mgr.GetAPIReader()), nodes: nodesOf(mgr.GetClient()), also: o.Clients, authority: k.clients,
		clock: o.Clock, log: o.Logger, metrics: o.Metrics,
	}
	serve := func(ctx context.Context) error {
		err := web.Serve(ctx, o.Listener, mux, serving(k.certificate, from))
		if err != nil {
			return fmt.Errorf("webhook: %w", err)
		}
		return nil
	}
	return []prometheus.Collector{expiry(k)}, errors.Join(mgr.Add(always(serve)), mgr.Add(always(k.run)), mgr.Add(always(from.run)))
}

// serving returns how clients are served, with a certificate.
func serving(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), from *clients) web.Options {
	with := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: certificate}
	with.GetConfigForClient = from.handshake(with.Clone())
	return web.Options{TLS: with, MaxBody: maxReview, Preferred: from.preferred}
}

// names are the names in the operator's certificate: that of its Service, and for API servers that are configured
// with a URL the address that it listens at.
func names(o Options) []string {
	list := []string{ServiceName + "." + o.Namespace + ".svc"}
	if at, err := netip.ParseAddrPort(o.Listener.Addr().String()); err == nil && !at.Addr().IsUnspecified() {
		list = append(list, at.Addr().String())
	}
	return list
}

// always runs in every operator, whether it leads or not.
type always func(context.Context) error

// Start implements manager.Runnable.
func (a always) Start(ctx context.Context) error { return a(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (always) NeedLeaderElection() bool { return false }
