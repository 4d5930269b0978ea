package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berthnet/berth/internal/ctl/connect"
)

// answering is an API server without a network; a nil response is empty.
type answering func(*http.Request) any

func (f answering) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	var err error
	if v := f(r); v != nil {
		body, err = json.Marshal(v)
	}
	return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, err
}

// After the resource version has expired, the command lists events again and prints none twice. It does not
// flood a server that ends each watch immediately.
func TestFollowSurvivesExpiredResourceVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, event := time.Now(), func(name string, at time.Time) corev1.Event {
			return corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Reason: name, ReportingController: connect.DaemonName, LastTimestamp: metav1.NewTime(at)}
		}
		ctx, cancel := context.WithCancel(t.Context())
		lists, watches := 0, 0
		cfg := &rest.Config{Host: "http://server", Transport: answering(func(r *http.Request) any {
			switch {
			case !strings.HasSuffix(r.URL.Path, "/events"):
				return struct{}{}
			case r.URL.Query().Get("watch") == "":
				lists++
				events := []corev1.Event{event("First", began), event("Second", began.Add(time.Second)), event("Third", began.Add(2*time.Second))}
				return corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: events[:lists+1]}
			}
			if watches++; watches == 100 {
				cancel() // the expected output is complete
			}
			if watches > 1 {
				return nil // an empty watch that ends
			}
			return map[string]any{"type": "ERROR", "object": metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}}
		})}
		var out bytes.Buffer
		cmd := New(Options{Config: cfg})
		cmd.SetArgs([]string{"events", "--follow"})
		cmd.SetOut(&out)
		done := make(chan error, 1)
		go func() { done <- cmd.ExecuteContext(ctx) }()
		time.Sleep(10 * rewatch) //nolint:forbidigo // virtual time
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if strings.Count(out.String(), "First") != 1 || strings.Count(out.String(), "Third") != 1 {
			t.Errorf("output, want each Event once:\n%s", &out)
		}
		if lists != 2 || watches > 11 {
			t.Errorf("%d lists and %d watches within %v, want 2 lists and at most 11 watches", lists, watches, 10*rewatch)
		}
	})
}
