package neutron

import (
	"fmt"
	"io"
	"net/http"
)

// maxReply bounds a reply, in bytes: a listing of 500 ports, each of which has some 3 kB,
// several times over.
const maxReply = 16 << 20

// bounded reads no more of a reply than there can be, and follows no redirection, as the
// token would go with the request.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundedBody{resp.Body, maxReply}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader. What is longer than it may be is an error, not an end.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the reply is longer than %d bytes", maxReply)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func noRedirection(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
