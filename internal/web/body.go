package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/listener"
)

const (
	// bodyTimeout bounds the time from a request's header to the last byte of its body.
	bodyTimeout = 2 * time.Second
	// allBodies bounds the memory of all bodies, in bytes, until their requests are answered. Peers
	// without priority may use half of it.
	allBodies = 64 << 20
	firstRead = 8 << 10 // initial buffer in bytes, which doubles
)

// bodies reads the body of a request before it calls the handler, and marks the connection as busy
// from then on, so a peer that does not finish a request does not count as busy. Bodies that are
// unexpected, too large or late are rejected without waiting for the rest.
type bodies struct {
	next http.Handler
	most int          // bytes of one
	held atomic.Int64 // bytes of all
}

var (
	errUnexpectedBody = errors.New("the request has a body, expected none")
	errLargeBody      = errors.New("the request's body is too large")
	errManyBodies     = errors.New("the bodies of other requests use all memory reserved for bodies")
)

// ServeHTTP implements http.Handler.
func (b *bodies) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn := r.Context().Value(connKey{}).(*listener.Conn)
	held, err := b.read(w, r, conn.Preferred())
	defer func() { b.held.Add(-int64(held)) }()
	until := time.Time{} // a handler may take longer than the body
	if err != nil {
		until = time.Unix(1, 0) // do not wait for the rest of the body
	}
	if e := http.NewResponseController(w).SetReadDeadline(until); err == nil && e != nil {
		err = fmt.Errorf("clear the read deadline: %w", e)
	}
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	conn.Working(true)
	b.next.ServeHTTP(w, r)
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, errLargeBody):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errManyBodies):
		return http.StatusServiceUnavailable
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}

// read reads a body into memory, and returns how many bytes of allBodies it holds, even with an error.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, preferred bool) (held int, err error) {
	if r.ContentLength == 0 {
		return 0, nil
	}
	if b.most == 0 || r.Method == http.MethodGet || r.Method == http.MethodHead {
		return 0, errUnexpectedBody
	}
	if r.ContentLength > int64(b.most) {
		return 0, fmt.Errorf("%w: expected %d bytes at most", errLargeBody, b.most)
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return 0, fmt.Errorf("set the deadline for the body: %w", err)
	}
	limit := int64(allBodies)
	if !preferred {
		limit /= 2
	}
	var data []byte
	for {
		if len(data) == cap(data) {
			more := max(firstRead, cap(data))
			held += more
			if b.held.Add(int64(more)) > limit {
				return held, errManyBodies
			}
			data = slices.Grow(data, more)
		}
		n, err := r.Body.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if len(data) > b.most {
			return held, fmt.Errorf("%w: expected %d bytes at most", errLargeBody, b.most)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return held, fmt.Errorf("read the request's body: %w", err)
		}
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	return held, nil
}
