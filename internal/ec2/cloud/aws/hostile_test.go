package aws

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// hostile plays an EC2 whose answers are made by a function.
func hostile(t *testing.T, answer http.HandlerFunc, change ...func(*setup)) cloud.API {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/xml")
		answer(w, r)
	}))
	t.Cleanup(h.Close)
	return client(t, &server{Server: h}, change...)
}

// byteByByte writes a letter until the client closes the connection.
func byteByByte(w http.ResponseWriter, letter string, pause time.Duration) {
	for {
		if _, err := io.WriteString(w, letter); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		<-time.After(pause)
	}
}

// doubtful fails unless err is of class Transient and has a text.
func doubtful(t *testing.T, err error, says string) {
	t.Helper()
	if cloud.ClassOf(err) != cloud.Transient || !strings.Contains(fmt.Sprint(err), says) {
		t.Errorf("got %v of class %v, want a transient one that says %q", err, cloud.ClassOf(err), says)
	}
}

// The size of replies, and of what is kept of them, is limited.
func TestAnswersAreBounded(t *testing.T) {
	blank := []byte(strings.Repeat(" ", 1<<20))
	for _, tt := range []struct {
		name   string
		status int
		head   string
		body   []byte // over and over
		times  int
		says   string
	}{
		{"a large refusal", 500, "<Response>", blank, maxRefusal>>20 + 8, "bytes"},
		{"deep elements", 200, "<DescribeNetworkInterfacesResponse>", []byte(strings.Repeat("<a>", 1000)), 4000, "deep"},
		{"deep elements behind a comment", 200, "<DescribeNetworkInterfacesResponse>", []byte("<a><!-- </a> -->"), 4000, "declaration"},
		{"deep elements behind an instruction", 200, "<DescribeNetworkInterfacesResponse>", []byte("<a><?a ></a ?>"), 4000, "declaration"},
		{"deep elements behind an attribute", 200, "<DescribeNetworkInterfacesResponse>", []byte(`<a b="/>">`), 4000, "deep"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.head)
				for range tt.times {
					if _, err := w.Write(tt.body); err != nil {
						return
					}
				}
			})
			_, err := c.ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
			doubtful(t, err, tt.says)
		})
	}
}

// Replies that would take too long are refused likewise.
func TestReadersOfAnswersAreBounded(t *testing.T) {
	endless := func(text string) io.Reader { return &repeat{text: text} }
	n, err := io.Copy(io.Discard, &bounded{from: endless(" "), most: maxAnswer, left: maxAnswer})
	if n != maxAnswer || err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("read %d bytes, then %v", n, err)
	}
	if n, err := io.Copy(io.Discard, &bounded{from: strings.NewReader("four"), most: 4, left: 4}); n != 4 || err != nil {
		t.Errorf("read %d of 4 bytes, then %v", n, err)
	}
	s := &shallow{from: endless("<item/>")}
	if _, err := io.Copy(io.Discard, s); err == nil || !strings.Contains(err.Error(), "elements") || s.elements > maxElements+1 {
		t.Errorf("%d elements, then %v", s.elements, err)
	}
	if _, err := io.Copy(io.Discard, &shallow{from: strings.NewReader("<?xml version='1.0'?><a b='>' c=\"/>\">1 > 0<d/></a>")}); err != nil {
		t.Errorf("an answer as it should be: %v", err)
	}
}

// repeat reads a text over and over.
type repeat struct {
	text string
	at   int
}

// Read implements io.Reader.
func (r *repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.text[r.at]
		r.at = (r.at + 1) % len(r.text)
	}
	return len(p), nil
}

// An answer that comes byte by byte is given up in time.
func TestAnswersByteByByte(t *testing.T) {
	c := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<DescribeNetworkInterfacesResponse>")
		byteByByte(w, " ", time.Millisecond)
	}, func(o *setup) { o.Pace.CallTimeout = 200 * time.Millisecond })
	_, err := c.ENIs(t.Context(), cloud.ENIFilter{VPCID: "vpc-1"})
	doubtful(t, err, "")
}

// Nobody who answers for EC2 or the metadata service sends Berth, and what it
// asks for, to another place.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := serve(t, map[string][]answer{describeENIs: {ok(describeENIs, "")}})
	away := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(away.Close)
	clearAWS(t)
	c := client(t, &server{Server: away})
	_, err := c.ENIs(t.Context(), cloud.ENIFilter{})
	doubtful(t, err, "")
	m := NewMetadata(Options{IMDSEndpoint: away.URL, Logger: slog.New(slog.DiscardHandler)})
	if _, err = m.once(t.Context(), "instance-id"); err == nil || !strings.Contains(err.Error(), "not followed") {
		t.Errorf("the metadata service sent it elsewhere: got %v", err)
	}
	// The credentials of the instance's role too.
	o := Options{Region: "eu-west-1", EC2Endpoint: away.URL, IMDSEndpoint: away.URL, Logger: slog.New(slog.DiscardHandler)}
	c = setup{o, pace.Options{Clock: newHasty()}}.client(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2) // the SDK would try for ten seconds
	defer cancel()
	if _, err = c.ENIs(ctx, cloud.ENIFilter{}); err == nil {
		t.Error("ENIs without credentials")
	}
	if n := len(elsewhere.calls); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// A metadata service that answers byte by byte is given up in time.
func TestMetadataByteByByte(t *testing.T) {
	clearAWS(t)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		if r.URL.Path == "/latest/api/token" {
			_, _ = io.WriteString(w, "token")
			return
		}
		byteByByte(w, "i", 10*time.Millisecond)
	}))
	t.Cleanup(h.Close)
	m := NewMetadata(Options{IMDSEndpoint: h.URL, HTTPClient: calm, Logger: slog.New(slog.DiscardHandler), MetadataTimeout: time.Second / 2})
	_, err := m.Identity(t.Context())
	doubtful(t, err, "instance-id")
}
