package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/web"
	"github.com/berthnet/berth/internal/web/webtest"
)

// serve starts a server in a bubble, and returns a function that connects from an address.
func serve(t *testing.T, h http.HandlerFunc, o web.Options) (connect func(from netip.Addr) net.Conn, end func()) {
	l, ctx, ended := webtest.Listen(netip.MustParseAddr("10.0.0.1")), t.Context(), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { ended <- web.Serve(ctx, l, h, o) }()
	connect = func(from netip.Addr) net.Conn {
		c, err := l.Dial(ctx, from)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return connect, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // connections that are closed linger
	}
}

var someone = netip.MustParseAddr("10.66.0.1")

// ask sends a text, and returns the status of the answer and how long it took.
func ask(t *testing.T, c net.Conn, text ...string) (status int, took time.Duration) {
	t.Helper()
	defer c.Close()
	begun := time.Now()
	go func() {
		for _, part := range text {
			_, _ = io.WriteString(c, part)
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a synctest bubble
		}
	}()
	answer, err := http.ReadResponse(bufio.NewReader(c), nil) //nolint:bodyclose // the connection is closed
	if err != nil {
		t.Error(err)
		return 0, time.Since(begun)
	}
	return answer.StatusCode, time.Since(begun)
}

func TestBodies(t *testing.T) {
	const most = 3 << 10
	large := strings.Repeat("x", most+1)
	post := func(length int) string {
		return fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", length)
	}
	const chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, tt := range map[string]struct {
		most   int
		say    []string
		status int
		after  time.Duration
	}{
		"none":                        {most, []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n"}, 200, 0},
		"one of a GET":                {most, []string{"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"}, 400, 0},
		"one where none is expected":  {0, []string{post(5)}, 400, 0},
		"chunks where none are":       {0, []string{chunked}, 400, 0},
		"one":                         {most, []string{post(5), "x", "xxxx"}, 200, 200 * time.Millisecond},
		"the largest":                 {most, []string{post(most), large[1:]}, 200, 100 * time.Millisecond},
		"one that is too large":       {most, []string{post(most + 1)}, 413, 0},
		"one of chunks":               {most, []string{chunked, "5\r\nxxxxx\r\n", "0\r\n\r\n"}, 200, 200 * time.Millisecond},
		"chunks that are too large":   {most, []string{chunked, fmt.Sprintf("%x\r\n%s\r\n", len(large), large)}, 413, 100 * time.Millisecond},
		"one that does not come":      {most, []string{post(5), "x"}, 408, 2 * time.Second},
		"one that comes byte by byte": {most, append([]string{post(100)}, strings.Split(strings.Repeat("x", 100), "")...), 408, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				connect, end := serve(t, func(_ http.ResponseWriter, r *http.Request) {
					if data, err := io.ReadAll(r.Body); err != nil || int64(len(data)) != r.ContentLength {
						t.Errorf("a body of %d bytes, %v, announced as %d", len(data), err, r.ContentLength)
					}
				}, web.Options{MaxBody: tt.most})
				defer end()
				if status, took := ask(t, connect(someone), tt.say...); status != tt.status || took != tt.after {
					t.Errorf("status %d after %s, want %d after %s", status, took, tt.status, tt.after)
				}
			})
		})
	}
}

// Idle connections do not displace a request in progress, and a handler may take longer than a body.
func TestWhatIsAnsweredIsNotClosed(t *testing.T) {
	for name, tt := range map[string]struct {
		takes  time.Duration
		silent int
	}{"beside silent connections": {900 * time.Millisecond, 2 * web.Connections}, "alone": {15 * time.Second, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				connect, end := serve(t, func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-time.After(tt.takes):
					case <-r.Context().Done():
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				}, web.Options{MaxBody: 1})
				defer end()
				c := connect(someone)
				go func() {
					time.Sleep(time.Millisecond) //nolint:forbidigo // once the request is being answered
					from := someone
					for range tt.silent {
						from = from.Next()
						connect(from)
					}
				}()
				if status, took := ask(t, c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"); status != http.StatusOK || took != tt.takes {
					t.Errorf("status %d after %s", status, took)
				}
			})
		})
	}
}
