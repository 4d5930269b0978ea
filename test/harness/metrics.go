package harness

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berthnet/berth/internal/metric"
)

// CheckMetrics compares samples of collectors by name and labels, and the metric families with the
// documented ones.
func CheckMetrics(t *testing.T, collectors []prometheus.Collector, families []metric.Family, want map[string]string) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		OK(t, r.Register(c))
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	got := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		i := strings.LastIndexByte(line, ' ')
		got[line[:i]] = strings.TrimSpace(line[i:])
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %s", name, got[name], value)
		}
	}
	for _, f := range families {
		if got["# TYPE "+f.Name] != f.Kind {
			t.Errorf("%s is a %q, documented as %s", f.Name, got["# TYPE "+f.Name], f.Kind)
		}
		delete(got, "# TYPE "+f.Name)
	}
	for name := range got {
		if strings.HasPrefix(name, "# TYPE ") {
			t.Errorf("not documented: %s", name)
		}
	}
}
