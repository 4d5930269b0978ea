package unary

import (
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	streamID = 1 // the first and only one of the connection

	defaultWindow   = 65535 // RFC 9113, 6.9.2
	defaultMaxFrame = 16384 // RFC 9113, 6.5.2
	maxWindow       = 1<<31 - 1
	maxHeaderList   = 64 << 10
	receiveWindow   = MaxReply + prefixSize
)

// stream is the state of the connection and its one stream.
type stream struct {
	framer *http2.Framer

	unsent []byte // of the request
	ended  bool   // the request was sent to its end

	// How much the server lets us send, by connection and stream, and in a frame.
	connWindow, streamWindow, initialWindow int64
	maxFrame                                int

	headers bool   // the response's have come
	body    []byte // of the response
}

func newStream(f *http2.Framer, message []byte) *stream {
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.MaxHeaderListSize = maxHeaderList
	f.SetMaxReadFrameSize(defaultMaxFrame)
	return &stream{
		framer: f, unsent: message, maxFrame: defaultMaxFrame,
		connWindow: defaultWindow, streamWindow: defaultWindow, initialWindow: defaultWindow,
	}
}

// open sends everything up to the request's message. The windows are opened
// once for the largest reply, so that none need be given back.
func (s *stream) open(header []byte) error {
	return errors.Join(
		s.framer.WriteSettings(
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: receiveWindow},
			http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList},
		),
		s.framer.WriteWindowUpdate(0, receiveWindow-defaultWindow),
		s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID, BlockFragment: header, EndHeaders: true}),
	)
}

// send sends as much of the request as the server's windows let it.
func (s *stream) send() error {
	for !s.ended {
		n := min(int64(len(s.unsent)), s.connWindow, s.streamWindow, int64(s.maxFrame))
		if n <= 0 {
			return nil
		}
		chunk := s.unsent[:n]
		s.unsent = s.unsent[n:]
		s.connWindow -= n
		s.streamWindow -= n
		s.ended = len(s.unsent) == 0
		if err := s.framer.WriteData(streamID, s.ended, chunk); err != nil {
			return err
		}
	}
	return nil
}

// receive takes one frame in and reports whether it was the last. The error is
// then the call's.
func (s *stream) receive(frame http2.Frame) (done bool, err error) {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return s.receiveHeaders(f)
	case *http2.DataFrame:
		return false, s.receiveData(f)
	case *http2.SettingsFrame:
		return false, s.receiveSettings(f)
	case *http2.WindowUpdateFrame:
		return false, s.receiveWindow(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			return false, s.framer.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame:
		if f.StreamID == streamID {
			return false, errorf(resetCode(f.ErrCode), "the server ended the call: %v", f.ErrCode)
		}
	case *http2.GoAwayFrame:
		// A server that ends finishes the streams up to LastStreamID.
		if f.LastStreamID < streamID {
			return false, errorf(Unavailable, "the server is ending: %v", f.ErrCode)
		}
	case *http2.PushPromiseFrame:
		return false, http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return false, nil // of no meaning here, or of a kind to be ignored
}

func (s *stream) receiveData(f *http2.DataFrame) error {
	switch {
	case f.StreamID != streamID || !s.headers:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case f.StreamEnded():
		return errorf(Internal, "the reply ended without a status")
	}
	s.body = append(s.body, f.Data()...)
	if announced(s.body) > MaxReply || len(s.body) > receiveWindow {
		return errorf(ResourceExhausted, "the reply is larger than %d bytes", MaxReply)
	}
	return nil
}

func (s *stream) receiveSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if err := f.ForeachSetting(s.apply); err != nil {
		return err
	}
	return s.framer.WriteSettingsAck()
}

func (s *stream) apply(set http2.Setting) error {
	if err := set.Valid(); err != nil {
		return err
	}
	switch set.ID {
	case http2.SettingInitialWindowSize:
		// A change goes for the open stream too, whose window it may turn
		// negative (RFC 9113, 6.9.2).
		s.streamWindow += int64(set.Val) - s.initialWindow
		s.initialWindow = int64(set.Val)
		if s.streamWindow > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	case http2.SettingMaxFrameSize:
		s.maxFrame = int(set.Val)
	}
	return nil
}

func (s *stream) receiveWindow(f *http2.WindowUpdateFrame) error {
	window := &s.connWindow
	if f.StreamID != 0 {
		window = &s.streamWindow
	}
	*window += int64(f.Increment)
	if *window > maxWindow {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	return nil
}

// resetCode is the table "Errors" of the gRPC protocol over HTTP/2.
func resetCode(c http2.ErrCode) Code {
	switch c {
	case http2.ErrCodeRefusedStream:
		return Unavailable
	case http2.ErrCodeCancel:
		return Canceled
	case http2.ErrCodeEnhanceYourCalm:
		return ResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		return PermissionDenied
	}
	return Internal
}
