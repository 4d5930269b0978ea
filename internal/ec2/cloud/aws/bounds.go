package aws

import (
	"context"
	"fmt"
	"io"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// The SDK buffers whole replies in memory, so their size is limited, well above that of legitimate ones: a
// page of a thousand ENIs with 50 addresses and 50 tags each has about 40 MB and 700,000 elements, nested ten
// deep.
const (
	maxAnswer   = 64 << 20 // bytes
	maxRefusal  = 1 << 20  // bytes of an error reply
	maxElements = 1_000_000
	maxDepth    = 100
)

// boundAnswers adds middleware to an SDK stack that limits the size of replies.
func boundAnswers(answer, refusal int64) func(*middleware.Stack) error {
	return func(s *middleware.Stack) error {
		return s.Deserialize.Add(middleware.DeserializeMiddlewareFunc("berth/boundAnswer",
			func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
				out, meta, err := next.HandleDeserialize(ctx, in)
				if r, ok := out.RawResponse.(*smithyhttp.Response); ok && r.Body != nil {
					limit := answer
					if r.StatusCode < 200 || r.StatusCode > 299 {
						limit = refusal
					}
					r.Body = body{&bounded{from: r.Body, most: limit, left: limit}, r.Body}
				}
				return out, meta, err
			}), middleware.After)
	}
}

// body reads from one stream and closes another.
type body struct {
	io.Reader
	io.Closer
}

// bounded is a reader that fails if its source holds more than most bytes.
type bounded struct {
	from       io.Reader
	most, left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, &badAnswer{fmt.Errorf("expected at most %d bytes", b.most)}
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.from.Read(p)
	if b.left -= int64(n); b.left < 0 { // one byte over the limit
		return n - 1, nil
	}
	return n, err
}

// shallow is an XML reader that fails on more, or more deeply nested, elements than an EC2 reply has.
// It rejects constructs that EC2 does not use and that could hide elements, such as CDATA sections.
type shallow struct {
	from            io.Reader
	at              place
	last            byte
	depth, elements int
	begun           bool // the root element has started
	err             error
}

// place is the construct that a byte of XML is part of.
type place byte

const (
	text    place = iota
	opened        // right after '<'
	opening       // a start tag
	quoted        // an attribute's value in "
	single        // an attribute's value in '
	closing       // an end tag
	heading       // the XML declaration
)

// Read implements io.Reader.
func (s *shallow) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.from.Read(p)
	for i := range n {
		if s.err = s.next(p[i]); s.err != nil {
			return i, s.err
		}
	}
	return n, err
}

func (s *shallow) next(c byte) error {
	switch s.at {
	case text:
		if c == '<' {
			s.at = opened
		}
	case opened:
		return s.open(c)
	case opening:
		switch {
		case c == '"':
			s.at = quoted
		case c == '\'':
			s.at = single
		case c == '>' && s.last == '/':
			s.depth--
			s.at = text
		case c == '>':
			s.at = text
		}
	case quoted, single:
		if c == '"' && s.at == quoted || c == '\'' && s.at == single {
			s.at = opening
		}
	case closing, heading:
		if c == '>' {
			s.at = text
		}
	}
	s.last = c
	return nil
}

// open handles the first byte after '<'.
func (s *shallow) open(c byte) error {
	switch {
	case c == '/':
		s.at = closing
		s.depth--
	case c == '?' && !s.begun:
		s.at = heading
	case c == '?' || c == '!':
		return &badAnswer{fmt.Errorf("a declaration within elements: expected elements alone")}
	default:
		s.at, s.begun = opening, true
		s.depth++
		s.elements++
	}
	s.last = c
	switch {
	case s.depth > maxDepth:
		return &badAnswer{fmt.Errorf("elements more than %d deep", maxDepth)}
	case s.depth < 0:
		return &badAnswer{fmt.Errorf("an end without an element")}
	case s.elements > maxElements:
		return &badAnswer{fmt.Errorf("more than %d elements", maxElements)}
	}
	return nil
}
