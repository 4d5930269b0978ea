// Package httpreply is what the lab's HTTP services share: how they send replies, how they fail
// below HTTP, the faults that calls meet, and the log of calls.
package httpreply

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"time"
)

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

// A reply of up to segment bytes reaches a client in one read. Longer ones are
// held back for a moment: smithy-go (1.28) closes the request's body as soon
// as the reply begins, and if net/http is not quite done with that body it
// drops the connection in the middle of the reply. Real networks are never as
// fast as a loopback interface, so only a lab meets this.
const (
	segment = 3 << 10
	moment  = 5 * time.Millisecond
)

// Send writes the body of a successful reply, compressed where the client
// takes that and it pays.
func Send(w http.ResponseWriter, r *http.Request, body []byte) {
	if len(body) > 1<<10 && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(body) // a buffer takes everything
		_ = z.Close()
		body = b.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	if len(body) > segment {
		time.Sleep(moment) //nolint:forbidigo // waits for a client that cannot be watched, see segment
	}
	_, _ = w.Write(body)
}
