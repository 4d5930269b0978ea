package operator

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/metric"
)

const (
	// allowedDir is where the chart mounts the ConfigMap berthd-allowed, which the operator may not read otherwise.
	allowedDir      = "/etc/berth/allowed"
	allowedInterval = time.Minute
	// allowedGrace is how long a difference in the ConfigMap must last: during an upgrade, the file of an operator
	// that is about to be replaced is already the new one.
	allowedGrace = 5 * time.Minute
)

var famInstalled = metric.New("berth_operator_settings_as_installed", "gauge", "1 while the arguments and the environment of this operator and the ConfigMap berthd-allowed are as the chart installed them, 0 otherwise. Missing if no chart installed them.")

// installed compares the operator's settings, and the ConfigMap berthd-allowed, with what the chart installed.
type installed struct {
	drift config.Drift
	dir   string
	clock clock.Clock
	log   *slog.Logger

	mu      sync.Mutex // guards all below
	since   time.Time  // when the ConfigMap was first seen to differ; zero: it does not
	changes []string   // of the ConfigMap, once they have lasted
}

// run follows the ConfigMap until ctx ends.
func (i *installed) run(ctx context.Context) error {
	if message := i.drift.Message(); message != "" {
		i.log.Warn("settings are not what the chart installed", "changes", message)
	}
	if i.drift.Installed == nil || i.drift.Installed.Allowed == nil {
		return nil
	}
	for {
		i.look()
		select {
		case <-ctx.Done():
			return nil
		case <-i.clock.After(allowedInterval):
		}
	}
}

// look compares the ConfigMap.
func (i *installed) look() {
	found := allowedChanges(i.drift.Installed.Allowed, readAllowed(i.dir))
	i.mu.Lock()
	defer i.mu.Unlock()
	switch now := i.clock.Now(); {
	case len(found) == 0:
		i.since, i.changes = time.Time{}, nil
		return
	case i.since.IsZero():
		i.since = now
		return
	case now.Sub(i.since) < allowedGrace:
		return
	}
	if !slices.Equal(i.changes, found) {
		i.log.Warn("the ConfigMap berthd-allowed is not what the chart installed", "changes", found)
	}
	i.changes = found
}

// state returns whether it is known what the chart installed, and how the settings differ from that; empty if they do not.
func (i *installed) state() (known bool, message string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.drift
	d.Changes = slices.Concat(d.Changes, i.changes)
	return d.Installed != nil, d.Message()
}

// gauge exports the state.
func (i *installed) gauge() prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		known, message := i.state()
		switch {
		case known && message == "":
			emit(famInstalled, 1)
		case known:
			emit(famInstalled, 0)
		}
	}, famInstalled)
}

// readAllowed returns the data of the mounted ConfigMap. A ConfigMap that does not exist has none.
func readAllowed(dir string) map[string]string {
	out := map[string]string{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") { // the kubelet's own
			continue
		}
		if text, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			out[e.Name()] = string(text)
		}
	}
	return out
}

// allowedChanges describes the differences between the data of the ConfigMap as installed and as it is.
func allowedChanges(was, is map[string]string) (out []string) {
	if len(is) == 0 {
		return []string{"the ConfigMap berthd-allowed is missing, and the chart installed one"}
	}
	shown := func(text string) string {
		if text == "" {
			return "empty"
		}
		return text
	}
	keys := maps.Clone(was)
	maps.Copy(keys, is)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if was[key] != is[key] {
			out = append(out, key+" of the ConfigMap berthd-allowed is "+shown(is[key])+", and the chart installed "+shown(was[key]))
		}
	}
	return out
}
