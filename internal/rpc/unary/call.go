// Package unary makes one gRPC call on a connection of its own, and is small
// so that a program which does nothing else starts fast.
//
// It is HTTP/2 by golang.org/x/net/http2's Framer and hpack, which know the
// frames and check them, and on top of it what the gRPC protocol (PROTOCOL-HTTP2.md
// of grpc/grpc) asks of a unary client: no name resolution, balancing, retries,
// compression or TLS. The server is an ordinary grpc-go one.
//
// Why not grpc-go: the plugin is executed for every ADD and DEL, and most of
// its time is the start of the process. BenchmarkStart in package cni measures
// this client against grpc-go's in the same program; where it was written, on
// two cores, exec to exit of a whole ADD took (medians)
//
//	1.3 ms  a Go program that prints two bytes
//	1.8 ms  the CNI skeleton, no call
//	2.7 ms  with this package
//	3.7 ms  with grpc-go
//	4.0 ms  with net/http's HTTP/2
//
// of an exec-add budget (design.md section 10) of about 4.3 ms there, daemon included.
package unary

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// MaxReply is the most bytes that a reply may have.
const MaxReply = 4 << 20

// Call sends req to a full method name such as "/berth.v1.Node/Add" and fills
// reply with the answer. It owns conn and closes it. The server learns of the
// deadline of ctx, and of its end by the connection's.
//
// Every error is a gRPC status: the server's, or one made here:
// DeadlineExceeded and Canceled of ctx, Unavailable when the connection or the
// server went away, Internal when the server broke the protocol.
func Call(ctx context.Context, conn net.Conn, method string, req, reply proto.Message) error {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	message, err := encode(req)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	answer, err := exchange(ctx, conn, method, message)
	if err != nil {
		return statusOf(ctx, err)
	}
	if err := decode(answer, reply); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
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

// statusOf makes any error of an exchange a gRPC status.
func statusOf(ctx context.Context, err error) error {
	deadline, ok := ctx.Deadline()
	if st, is := status.FromError(err); is {
		if st.Code() == codes.Canceled && ok && !time.Now().Before(deadline) {
			// The server, which knows the deadline too, was the quicker.
			return status.Error(codes.DeadlineExceeded, "no answer in time")
		}
		return err
	}
	var timeout net.Error
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return status.Error(codes.Canceled, "the call was cancelled")
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout() && ok && !time.Now().Before(deadline):
		return status.Error(codes.DeadlineExceeded, "no answer in time")
	case isProtocolError(err):
		return status.Errorf(codes.Internal, "the server broke the protocol: %v", err)
	}
	return status.Errorf(codes.Unavailable, "the connection broke: %v", err)
}

func isProtocolError(err error) bool {
	var conn http2.ConnectionError
	var stream http2.StreamError
	return errors.As(err, &conn) || errors.As(err, &stream) || errors.Is(err, http2.ErrFrameTooLarge)
}

// prefixSize is the flag and the length before a message.
const prefixSize = 5

func encode(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefixSize), m)
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-prefixSize))
	return b, nil
}

func decode(body []byte, m proto.Message) error {
	if len(body) < prefixSize {
		return fmt.Errorf("decoding the reply: %w", io.ErrUnexpectedEOF)
	}
	if body[0] != 0 {
		return errors.New("the reply is compressed, which nobody asked for")
	}
	if n := announced(body); n != int64(len(body)-prefixSize) {
		return fmt.Errorf("the reply has %d bytes, announced were %d", len(body)-prefixSize, n)
	}
	if err := proto.Unmarshal(body[prefixSize:], m); err != nil {
		return fmt.Errorf("decoding the reply: %w", err)
	}
	return nil
}

// announced is the length of the message that a body begins with, 0 as long as
// it is not known.
func announced(body []byte) int64 {
	if len(body) < prefixSize {
		return 0
	}
	return int64(binary.BigEndian.Uint32(body[1:]))
}
