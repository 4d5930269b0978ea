package aws

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"fmt"

	sdkmw "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// peekSize is how many bytes are searched for the root element of a reply.
const peekSize = 4096

// badAnswer is the error for a reply that EC2 would not send: truncated, from a proxy, or with an
// unreadable field.
type badAnswer struct{ err error }

func (e *badAnswer) Error() string { return "malformed answer: " + e.err.Error() }
func (e *badAnswer) Unwrap() error { return e.err }

// checkAnswers refuses successful replies whose root element is not that of the action. The SDK takes an
// empty body, or the log-in page of a proxy, for an empty listing, which would mean that nothing exists.
func checkAnswers(s *middleware.Stack) error {
	return s.Deserialize.Add(middleware.DeserializeMiddlewareFunc("berth/checkAnswer",
		func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
			out, meta, err := next.HandleDeserialize(ctx, in)
			if err != nil {
				return out, meta, err
			}
			r, ok := out.RawResponse.(*smithyhttp.Response)
			if !ok || r.StatusCode < 200 || r.StatusCode > 299 || r.Body == nil {
				return out, meta, nil
			}
			head := bufio.NewReaderSize(r.Body, peekSize)
			want := sdkmw.GetOperationName(ctx) + "Response"
			first, perr := head.Peek(1)
			if perr == nil {
				// The first read is enough; it need not fill the buffer.
				first, _ = head.Peek(head.Buffered())
			}
			if root := rootElement(first); root != want {
				return out, meta, &badAnswer{fmt.Errorf("root element %q, expected %q", root, want)}
			}
			r.Body = body{&shallow{from: head}, r.Body}
			return out, meta, nil
		}), middleware.After)
}

// rootElement returns the name of the first element of an XML document; empty without one.
func rootElement(head []byte) string {
	d := xml.NewDecoder(bytes.NewReader(head))
	for {
		t, err := d.RawToken()
		if err != nil {
			return ""
		}
		if e, ok := t.(xml.StartElement); ok {
			return e.Name.Local
		}
	}
}
