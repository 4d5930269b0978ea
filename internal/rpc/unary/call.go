// Package unary makes one gRPC call on a connection of its own, and is small so
// that short-lived programs start fast.
//
// It speaks HTTP/2 with golang.org/x/net/http2's Framer and hpack, which check the
// frames, and implements only what the gRPC protocol (PROTOCOL-HTTP2 of grpc/grpc)
// requires of a unary client: no name resolution, balancing, retries, compression
// or TLS. The server is an ordinary grpc-go server.
//
// Why not grpc-go: the plugin is executed for every ADD and DEL, and most of its
// time is the start of the process, initialising packages and paging them in. On
// two cores, an ADD that is answered immediately took these times from exec to exit
// when this was written (medians):
//
//	1.3 ms  a Go program that prints two bytes
//	1.8 ms  the CNI skeleton, no call
//	2.2 ms  frames by hand, messages by package wire
//	2.4 ms  this package, messages by package wire
//	2.7 ms  this package, messages by the protobuf runtime
//	3.7 ms  grpc-go
//	4.0 ms  net/http's HTTP/2
//
// of the 4.3 ms that the budget exec-add (docs/contribute/design.md, "Budgets") allows for the
// whole ADD there. Handwritten frames were rejected: the Framer's checks are worth
// their cost.
package unary

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// MaxReply is the maximum size of a reply in bytes.
const MaxReply = 4 << 20

// Call sends a message to a full method name such as "/berth.v1.Node/Add" and
// returns the reply. It owns conn and closes it. The server learns of ctx's
// deadline from a header, and of its end when the connection closes.
//
// Every error is an *Error: the server's status, or one made here:
// DeadlineExceeded and Canceled of ctx, Unavailable when the connection or the
// server went away, Internal when the server broke the protocol.
func Call(ctx context.Context, conn net.Conn, method string, message []byte) ([]byte, error) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	body, err := exchange(ctx, conn, method, prefixed(message))
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	return unprefixed(body)
}

// exchange does the call's HTTP/2 and returns the reply's body.
func exchange(ctx context.Context, conn net.Conn, method string, message []byte) ([]byte, error) {
	out := bufio.NewWriterSize(conn, 4<<10)
	s := newStream(http2.NewFramer(out, bufio.NewReader(conn)), message)
	if _, err := out.WriteString(http2.ClientPreface); err != nil {
		return nil, err
	}
	if err := s.open(requestHeader(ctx, method)); err != nil {
		return nil, err
	}
	for {
		if err := s.send(); err != nil {
			return nil, err
		}
		if err := out.Flush(); err != nil {
			return nil, err
		}
		frame, err := s.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		done, err := s.receive(frame)
		if done || err != nil {
			return s.body, err
		}
	}
}

// statusOf makes any error of an exchange an *Error.
func statusOf(ctx context.Context, err error) error {
	deadline, ok := ctx.Deadline()
	late := ok && !time.Now().Before(deadline)
	var e *Error
	var timeout net.Error
	switch {
	case errors.As(err, &e) && e.Code == Canceled && late:
		// The server knows the deadline too, and was faster.
		return errorf(DeadlineExceeded, "no answer in time")
	case errors.As(err, &e):
		return e
	case errors.Is(ctx.Err(), context.Canceled):
		return errorf(Canceled, "the call was cancelled")
	case ctx.Err() != nil, late && errors.As(err, &timeout) && timeout.Timeout():
		return errorf(DeadlineExceeded, "no answer in time")
	case isProtocolError(err):
		return errorf(Internal, "the server broke the protocol: %v", err)
	}
	return errorf(Unavailable, "the connection broke: %v", err)
}

func isProtocolError(err error) bool {
	var conn http2.ConnectionError
	var stream http2.StreamError
	return errors.As(err, &conn) || errors.As(err, &stream) || errors.Is(err, http2.ErrFrameTooLarge)
}

// prefixSize is the size of the flag and the length before a message.
const prefixSize = 5

func prefixed(message []byte) []byte {
	b := make([]byte, prefixSize, prefixSize+len(message))
	binary.BigEndian.PutUint32(b[1:], uint32(len(message)))
	return append(b, message...)
}

func unprefixed(body []byte) ([]byte, error) {
	if len(body) < prefixSize {
		return nil, errorf(Internal, "the reply has no message")
	}
	if body[0] != 0 {
		return nil, errorf(Internal, "the reply is compressed, but the client supports no compression")
	}
	if n := announced(body); n != int64(len(body)-prefixSize) {
		return nil, errorf(Internal, "the reply has %d bytes, announced were %d", len(body)-prefixSize, n)
	}
	return body[prefixSize:], nil
}

// announced returns the length of the message at the beginning of a body; 0 while
// it is unknown.
func announced(body []byte) int64 {
	if len(body) < prefixSize {
		return 0
	}
	return int64(binary.BigEndian.Uint32(body[1:]))
}
