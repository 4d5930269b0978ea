package unary

import (
	"bytes"
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// requestHeader is the header block of a call.
func requestHeader(ctx context.Context, method string) []byte {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"},
		{Name: "te", Value: "trailers"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "berth"},
	}
	if deadline, ok := ctx.Deadline(); ok {
		fields = append(fields, hpack.HeaderField{Name: "grpc-timeout", Value: grpcTimeout(time.Until(deadline))})
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = enc.WriteField(f) // a bytes.Buffer takes everything
	}
	return block.Bytes()
}

// grpcTimeout is at most eight digits and a unit: milliseconds as long as they
// fit, else seconds.
func grpcTimeout(d time.Duration) string {
	if d <= 0 {
		return "0m"
	}
	if ms := (d + time.Millisecond - 1) / time.Millisecond; ms < 1e8 {
		return strconv.FormatInt(int64(ms), 10) + "m"
	}
	return strconv.FormatInt(min(int64(d/time.Second), 1e8-1), 10) + "S"
}

// receiveHeaders takes the response's headers, or its trailers, which end the
// call and hold its status.
func (s *stream) receiveHeaders(f *http2.MetaHeadersFrame) (done bool, err error) {
	switch {
	case f.StreamID != streamID:
		return false, http2.ConnectionError(http2.ErrCodeProtocol)
	case f.Truncated:
		return false, errorf(Internal, "the headers of the reply are too large")
	}
	if !s.headers {
		final, err := checkResponse(f)
		if err != nil || !final {
			return false, err
		}
		s.headers = true
	} else if !f.StreamEnded() {
		return false, errorf(Internal, "the trailers of the reply do not end it")
	}
	if !f.StreamEnded() {
		return false, nil
	}
	return true, trailerStatus(f)
}

// checkResponse reports whether headers are a gRPC response's, or else interim
// ones (RFC 9110, 15.2) that others follow.
func checkResponse(f *http2.MetaHeadersFrame) (final bool, err error) {
	code := f.PseudoValue("status")
	if len(code) == 3 && code[0] == '1' {
		return false, nil
	}
	if code != "200" {
		return false, errorf(httpCode(code), "the server answered with HTTP status %q", code)
	}
	if t := field(f, "content-type"); !strings.HasPrefix(t, "application/grpc") {
		return false, errorf(Unknown, "the server answered with %q, not gRPC", t)
	}
	return true, nil
}

// httpCode is "HTTP to gRPC Status Code Mapping" of grpc/grpc.
func httpCode(status string) Code {
	switch status {
	case "400":
		return Internal
	case "401":
		return Unauthenticated
	case "403":
		return PermissionDenied
	case "404":
		return Unimplemented
	case "429", "502", "503", "504":
		return Unavailable
	}
	return Unknown
}

// trailerStatus is nil for OK, else the status with its details.
func trailerStatus(f *http2.MetaHeadersFrame) error {
	text := field(f, "grpc-status")
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return errorf(Unknown, "the server answered with grpc-status %q, expected a number", text)
	}
	if Code(n) == OK {
		return nil
	}
	if full, err := decodeStatus(field(f, "grpc-status-details-bin")); err == nil && full.Code == Code(n) {
		return full
	}
	return &Error{Code: Code(n), Message: unescape(field(f, "grpc-message"))}
}

// unescape undoes the percent-encoding of grpc-message; what is malformed
// stays as it is.
func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

func field(f *http2.MetaHeadersFrame, name string) string {
	for _, h := range f.RegularFields() {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}
