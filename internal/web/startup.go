package web

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// StartupPatience is how long a start-up probe waits: time for an ENI to be
// attached. With a last check of 5 s it is no longer than the probes of the chart
// wait, 20 s, and than writeTimeout.
const StartupPatience = 14 * time.Second

const (
	startupEvery = 100 * time.Millisecond // check is asked so often
	// startupWaiting is how many requests wait at a time: one has a kubelet, and where
	// others reach the address too, theirs must not take the listener's connections.
	startupWaiting = 4
)

// HandleStartup answers a start-up probe with 200: as soon as check returns nil,
// and otherwise after StartupPatience, since a program that waits for what is
// outside it has started. Where startupWaiting others wait already, it answers so at once.
// The kubelet makes an event of each probe that fails; one that waits spares it
// those of a start that is as it should be, and tells it at once when the program is ready.
func HandleStartup(mux *http.ServeMux, path string, check func() error) {
	waiting := make(chan struct{}, startupWaiting)
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		patience, cancel := context.WithTimeout(r.Context(), StartupPatience)
		defer cancel()
		select {
		case waiting <- struct{}{}:
			defer func() { <-waiting }()
		default:
			cancel()
		}
		again := time.NewTicker(startupEvery)
		defer again.Stop()
		for {
			err := check()
			if err == nil {
				fmt.Fprintln(w, "ok")
				return
			}
			select {
			case <-again.C:
			case <-patience.Done():
			}
			if patience.Err() != nil {
				fmt.Fprintln(w, "started, and not ready yet:", err)
				return
			}
		}
	})
}
