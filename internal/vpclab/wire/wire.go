// Package wire is how the lab's HTTP services fail below HTTP.
package wire

import "net/http"

// HangUp closes the connection of a request without any reply, which is what
// a client sees of an unreachable service or of a reply lost on its way.
func HangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the lab cannot close this connection: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_ = conn.Close()
}
