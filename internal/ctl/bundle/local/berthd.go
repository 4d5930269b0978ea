package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/node/introspect"
)

// settingsTimeout is short because all other parts wait for the settings.
const settingsTimeout = 3 * time.Second

func askSettings(ctx context.Context, o bundle.NodeOptions) (s introspect.Settings, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(o.Timeout, settingsTimeout))
	defer cancel()
	const most = 1 << 20
	err = ask(ctx, o.Address, introspect.SettingsPath, func(r io.Reader) error {
		return json.NewDecoder(io.LimitReader(r, most)).Decode(&s)
	})
	return s, err
}

// ask reads a path of an HTTP server, without a proxy.
func ask(ctx context.Context, address, path string, read func(io.Reader) error) error {
	if address == "" {
		return fmt.Errorf("%s is not served: the setting of its address is empty", path)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	err = read(resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("%s: %s", path, resp.Status), err)
	}
	return err
}

// introspection adds the introspection document and the node's readiness.
func (n *node) introspection(ctx context.Context, s *archive.Sink) error {
	err := n.document(ctx, s, introspect.Path, "ip-manager.json")
	var ready bytes.Buffer
	readyErr := ask(ctx, n.Address, "/readyz", func(r io.Reader) error {
		_, err := io.Copy(&ready, io.LimitReader(r, 64<<10))
		return err
	})
	if ready.Len() > 0 { // the body of a 503 explains the state
		readyErr = s.Bytes("readyz.txt", ready.Bytes())
	}
	return errors.Join(err, readyErr)
}

// document adds a document of the introspection address.
func (n *node) document(ctx context.Context, s *archive.Sink, path, name string) error {
	return ask(ctx, n.Address, path, func(r io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(r, s.Most()+1))
		if err != nil {
			return err
		}
		return s.Document(name, data)
	})
}

// networkPolicies adds which network policies are in force on the node.
func (n *node) networkPolicies(ctx context.Context, s *archive.Sink) error {
	if !n.policies {
		return nil
	}
	return n.document(ctx, s, introspect.NetworkPoliciesPath, "network-policies.json")
}

func (n *node) scrape(ctx context.Context, s *archive.Sink) error {
	return ask(ctx, n.metrics, "/metrics", func(r io.Reader) error { return s.Text("metrics.txt", r) })
}

// joinJSON adds a value as JSON and joins its error with err.
func joinJSON(s *archive.Sink, name string, v any, err error) error {
	data, jsonErr := json.MarshalIndent(v, "", "  ")
	if jsonErr == nil {
		jsonErr = s.Document(name, data)
	}
	return errors.Join(err, jsonErr)
}

// kubeletAddress is the default of the kubelet's health endpoint (--healthz-port).
const kubeletAddress = "127.0.0.1:10248"

// kubelet adds the kubelet's health. Its version is in the Node.
func kubelet(ctx context.Context, s *archive.Sink) error {
	return ask(ctx, kubeletAddress, "/healthz", func(r io.Reader) error { return s.Text("kubelet-healthz.txt", io.LimitReader(r, 64<<10)) })
}
