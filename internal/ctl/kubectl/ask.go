package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
)

// maxAnswer bounds a response, in bytes. The document of the largest node is far smaller.
const maxAnswer = 16 << 20

// maxSaid bounds the part of an error response that is shown.
const maxSaid = 4 << 10

// nodeClient queries the introspection addresses of daemons.
type nodeClient struct {
	dial     connect.Dialer
	timeout  time.Duration // of one request
	parallel int           // number of requests in flight
}

// get reads a path of a daemon's introspection address.
func (c nodeClient) get(ctx context.Context, d daemon, path string, into any) error {
	if d.port == 0 {
		return errors.New("its introspection address is disabled, or not on localhost, where port forwarding could reach it")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %v", c.timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://localhost:%d%s", d.port, path), nil)
	if err != nil {
		return err
	}
	resp, err := c.dial.Client(d.pod, d.port).Do(req)
	if err != nil {
		return plain(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return plain(ctx, err)
	case len(body) > maxAnswer:
		return fmt.Errorf("its answer exceeds %d MiB", maxAnswer>>20)
	case resp.StatusCode == http.StatusNotFound:
		return errors.New("its berthd does not know this request: it is older than this program")
	case resp.StatusCode != http.StatusOK:
		return errors.New(strings.TrimSpace(string(body[:min(len(body), maxSaid)])))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("its answer is not berthd's %s: %w", path, err)
	}
	return nil
}

// plain removes the request's URL, which is not a real address, from an error.
func plain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// document returns the introspection document of a node. An answer for another node is an error.
func (c nodeClient) document(ctx context.Context, d daemon) (introspect.Document, error) {
	var doc introspect.Document
	err := c.get(ctx, d, introspect.Path, &doc)
	if err == nil && doc.Node != "" && doc.Node != d.node {
		err = fmt.Errorf("it answers for node %s", doc.Node)
	}
	return doc, err
}

// pod returns a node's view of a pod. An answer about another pod is an error.
func (c nodeClient) pod(ctx context.Context, d daemon, namespace, name string) (introspect.Pod, error) {
	var view introspect.Pod
	query := url.Values{"namespace": {namespace}, "name": {name}}
	err := c.get(ctx, d, introspect.PodPath+"?"+query.Encode(), &view)
	if err == nil && (view.Namespace != namespace || view.Name != name) {
		err = fmt.Errorf("it answers about another pod, %s/%s", view.Namespace, view.Name)
	}
	return view, err
}

// policies returns what a node knows of network policies. An answer for another node is an error.
func (c nodeClient) policies(ctx context.Context, d daemon) (introspect.NetworkPolicies, error) {
	var doc introspect.NetworkPolicies
	err := c.get(ctx, d, introspect.NetworkPoliciesPath, &doc)
	if err == nil && doc.Node != "" && doc.Node != d.node {
		err = fmt.Errorf("it answers for node %s", doc.Node)
	}
	return doc, err
}

// judge returns what a node's policies say about a connection. An answer for another node is an error.
func (c nodeClient) judge(ctx context.Context, d daemon, f policy.Flow) (introspect.PolicyJudgement, error) {
	var j introspect.PolicyJudgement
	query := url.Values{
		"source": {f.Source.String()}, "destination": {f.Destination.String()}, "protocol": {strconv.Itoa(int(f.Protocol))}, "port": {strconv.Itoa(int(f.Port))},
	}
	err := c.get(ctx, d, introspect.PolicyJudgePath+"?"+query.Encode(), &j)
	if err == nil && j.Node != "" && j.Node != d.node {
		err = fmt.Errorf("it answers for node %s", j.Node)
	}
	return j, err
}

// answer is the document of a node, or the error from reading it.
type answer struct {
	doc  introspect.Document
	err  error
	held map[string]int // IPv4 addresses of its ENIs, by subnet
}

// documents returns the documents of many nodes by node, without their lists of addresses
// and NICs. It calls done with the number of responses so far. Requests in flight end with ctx.
func (c nodeClient) documents(ctx context.Context, daemons []daemon, done func(n int)) map[string]answer {
	return askAll(c, daemons, done, func(d daemon) answer {
		doc, err := c.document(ctx, d)
		held := heldByENIs(doc)
		// Thousands of documents with their lists would not fit into memory.
		doc.Allocated, doc.Available, doc.Cooling, doc.NICs = nil, nil, nil, nil
		return answer{doc, err, held}
	})
}

// askAll returns the answers of many nodes by node. It calls done with the number of answers so far.
func askAll[T any](c nodeClient, daemons []daemon, done func(n int), ask func(daemon) T) map[string]T {
	var mu sync.Mutex // guards out
	out := make(map[string]T, len(daemons))
	work := make(chan daemon)
	var wg sync.WaitGroup
	for range min(c.parallel, len(daemons)) {
		wg.Go(func() {
			for d := range work {
				one := ask(d)
				mu.Lock()
				out[d.node] = one
				n := len(out)
				mu.Unlock()
				done(n)
			}
		})
	}
	for _, d := range daemons {
		work <- d
	}
	close(work)
	wg.Wait()
	return out
}

// limits checks the flags that limit requests.
func limits(p *program) error {
	if p.parallel < 1 || p.parallel > 256 {
		return fmt.Errorf("--parallel is %d, expected 1 to 256", p.parallel)
	}
	if p.timeout <= 0 {
		return fmt.Errorf("--node-timeout is %v, expected more than 0", p.timeout)
	}
	return nil
}

// nodeClient returns a client for daemons, with the limits that the flags set.
func (p *program) nodeClient() (nodeClient, error) {
	if err := limits(p); err != nil {
		return nodeClient{}, err
	}
	dial := p.Dial
	if dial == nil {
		cfg, err := p.config()
		if err != nil {
			return nodeClient{}, err
		}
		if dial, err = connect.Forwarder(cfg); err != nil {
			return nodeClient{}, err
		}
	}
	return nodeClient{dial: dial, timeout: p.timeout, parallel: p.parallel}, nil
}
