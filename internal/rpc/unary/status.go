package unary

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// Code is a gRPC status code. Those that this package returns itself have names
// here; a server may send others.
type Code uint32

// The codes, by the numbers of gRPC's documentation.
const (
	OK                Code = 0
	Canceled          Code = 1
	Unknown           Code = 2
	DeadlineExceeded  Code = 4
	PermissionDenied  Code = 7
	ResourceExhausted Code = 8
	Unimplemented     Code = 12
	Internal          Code = 13
	Unavailable       Code = 14
	Unauthenticated   Code = 16
)

// Error is the status of a failed call.
type Error struct {
	Code    Code
	Message string
	Details []Detail
}

// Detail is a message that a server attached to a status.
type Detail struct {
	Type  string // full name, such as "berth.v1.Failure"
	Value []byte // the message's bytes
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// CodeOf returns the code of a Call's error, OK for nil.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Unknown
}

func errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// decodeStatus decodes the header grpc-status-details-bin: a google.rpc.Status
// in base64, with padding or without.
func decodeStatus(header string) (*Error, error) {
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(header, "="))
	if err != nil {
		return nil, fmt.Errorf("decoding the status details: %w", err)
	}
	e := &Error{}
	err = wire.Fields(raw, func(field protowire.Number, n uint64) {
		if field == 1 { // code
			e.Code = Code(n)
		}
	}, func(field protowire.Number, v []byte) error {
		switch field {
		case 2: // message
			e.Message = string(v)
		case 3: // details
			d, err := decodeAny(v)
			e.Details = append(e.Details, d)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("decoding the status details: %w", err)
	}
	return e, nil
}

// decodeAny decodes a google.protobuf.Any.
func decodeAny(raw []byte) (d Detail, err error) {
	err = wire.Fields(raw, nil, func(field protowire.Number, v []byte) error {
		switch field {
		case 1: // type_url, whose last part is the name
			d.Type = string(v[bytes.LastIndexByte(v, '/')+1:])
		case 2: // value
			d.Value = v
		}
		return nil
	})
	return d, err
}
