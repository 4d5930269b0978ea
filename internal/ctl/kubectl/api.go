package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/ctl/diagnose"
)

// page is the number of objects per list request.
const page = 500

// api reads objects as JSON: a typed client for all kinds of Kubernetes would double the
// size of the program. A failed read is recorded in unread and does not stop the others.
type api struct {
	rest   rest.Interface
	unread []string
}

// codecs decode a Status, the API server's form of an error.
var codecs = func() serializer.CodecFactory {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(s)
}()

// restClient returns a client for absolute paths.
func restClient(cfg *rest.Config) (rest.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.NegotiatedSerializer = &schema.GroupVersion{}, codecs.WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of the Kubernetes API: %w", err)
	}
	return c, nil
}

func (p *program) connect() (*api, error) {
	cfg, err := p.config()
	if err != nil {
		return nil, err
	}
	c, err := restClient(cfg)
	if err != nil {
		return nil, err
	}
	return &api{rest: c}, nil
}

// query holds the query parameters of a request.
type query map[string]string

func (q query) on(r *rest.Request) *rest.Request {
	for k, v := range q {
		r.Param(k, v)
	}
	return r
}

// all lists every object at a path, page by page, and returns the list's resource version.
// A kind that the cluster does not serve, as in node mode, has no objects.
func all[T any](ctx context.Context, a *api, what, path string, q query) (out []T, version string) {
	token, again := "", true
	for {
		var list struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []T             `json:"items"`
		}
		req := q.on(a.rest.Get().AbsPath(path)).Param("limit", strconv.Itoa(page))
		if token != "" {
			req.Param("continue", token)
		}
		err := into(ctx, req, &list)
		switch {
		case err == nil:
		case apierrors.IsResourceExpired(err) && again: // the continue token has expired: start again, once
			token, again, out = "", false, nil
			continue
		case apierrors.IsNotFound(err):
			return nil, ""
		default:
			a.note(what, err)
			return out, version
		}
		out, version = append(out, list.Items...), list.Metadata.ResourceVersion
		if token = list.Metadata.Continue; token == "" {
			return out, version
		}
	}
}

func into(ctx context.Context, req *rest.Request, v any) error {
	result := req.Do(ctx)
	if err := result.Error(); err != nil { // has the server's message, unlike the error of Raw
		return err
	}
	body, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode the API server's answer: %w", err)
	}
	return nil
}

// one reads an object that may not exist.
func one[T any](ctx context.Context, a *api, what, path string) diagnose.Fact[T] {
	var v T
	switch err := into(ctx, a.rest.Get().AbsPath(path), &v); {
	case err == nil:
		return diagnose.Of(v)
	case apierrors.IsNotFound(err):
		return diagnose.Fact[T]{}
	default:
		return diagnose.Unread[T](a.note(what, err))
	}
}

// note records why something could not be read, and returns the text.
func (a *api) note(what string, err error) string {
	why := fmt.Sprintf("%s: %v", what, err)
	if !slices.Contains(a.unread, why) {
		a.unread = append(a.unread, why)
	}
	return why
}

// reach fails if the API server does not respond or rejects the credentials. Without it,
// commands would print nothing but errors of every list.
func (a *api) reach(ctx context.Context) error {
	var v struct{}
	err := into(ctx, a.rest.Get().AbsPath("/version"), &v)
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) && !apierrors.IsUnauthorized(err) {
		return nil
	}
	return fmt.Errorf("ask the Kubernetes API: %w", err)
}

// watched is one event of a watch.
type watched struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watch calls each for every change at a path after a resource version, until the server
// ends the watch, and updates the version. It returns an error of the server or of each.
func watch(ctx context.Context, a *api, path string, q query, version *string, each func(corev1.Event) error) error {
	req := q.on(a.rest.Get().AbsPath(path)).Param("watch", "true").Param("allowWatchBookmarks", "true")
	if *version != "" {
		req.Param("resourceVersion", *version)
	}
	stream, err := req.Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for dec := json.NewDecoder(stream); ; {
		var w watched
		if err := dec.Decode(&w); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		if w.Type == "ERROR" {
			var status metav1.Status
			if err := json.Unmarshal(w.Object, &status); err != nil {
				return err
			}
			return &apierrors.StatusError{ErrStatus: status}
		}
		var e corev1.Event
		if err := json.Unmarshal(w.Object, &e); err != nil {
			return err
		}
		*version = e.ResourceVersion
		if w.Type == "ADDED" || w.Type == "MODIFIED" {
			if err := each(e); err != nil {
				return err
			}
		}
	}
}

// join returns a path of escaped names.
func join(parts ...string) string {
	path := ""
	for _, p := range parts {
		path += "/" + url.PathEscape(p)
	}
	return path
}
