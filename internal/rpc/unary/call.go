// Package unary makes one gRPC call on a connection of its own, and is small
// so that a program which does nothing else starts fast.
//
// It is HTTP/2 by golang.org/x/net/http2's Framer and hpack, which know the
// frames and check them, and on top of it what the gRPC protocol (PROTOCOL-HTTP2
// of grpc/grpc) asks of a unary client: no name resolution, balancing, retries,
// compression or TLS. The server is an ordinary grpc-go one.
//
// Why not grpc-go: the plugin is executed for every ADD and DEL, and most of
// its time is the start of the process, which goes into initialising packages
// and paging them in. When this was written, on two cores, exec to exit of an
// ADD that is answered at once took (medians)
//
//	1.3 ms  a Go program that prints two bytes
//	1.8 ms  the CNI skeleton, no call
//	2.2 ms  frames by hand, messages by package wire
//	2.4 ms  this package, messages by package wire
//	2.7 ms  this package, messages by the protobuf runtime
//	3.7 ms  grpc-go
//	4.0 ms  net/http's HTTP/2
//
// of the 4.3 ms that the budget exec-add (docs/design.md, "Budgets") allows for the
// whole ADD there. The first of the calls was refused: the Framer's checks are
// worth what they cost.
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

// MaxReply is the most bytes that a reply may have.
const MaxReply = 4 << 20

// Call sends a message to a full method name such as "/berth.v1.Node/Add" and
// returns the message that is the answer. It owns conn and closes it. The
// server learns of the deadline of ctx, and of its end by the connection's.
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
		// The server, which knows the deadline too, was the quicker.
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

// prefixSize is the flag and the length before a message.
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
		return nil, errorf(Internal, "the reply is compressed, which nobody asked for")
	}
	if n := announced(body); n != int64(len(body)-prefixSize) {
		return nil, errorf(Internal, "the reply has %d bytes, announced were %d", len(body)-prefixSize, n)
	}
	return body[prefixSize:], nil
}

// announced is the length of the message that a body begins with, 0 as long as
// it is not known.
func announced(body []byte) int64 {
	if len(body) < prefixSize {
		return 0
	}
	return int64(binary.BigEndian.Uint32(body[1:]))
}
