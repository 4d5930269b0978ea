package unary_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/internal/rpc/rpcfake"
	"github.com/berthnet/berth/internal/rpc/unary"
)

// peer is a server that sends the frames a test says.
type peer struct {
	*http2.Framer
	block bytes.Buffer
	enc   *hpack.Encoder
}

func (p *peer) headers(end bool, fields ...string) {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block.Bytes(), EndHeaders: true, EndStream: end})
}

func (p *peer) begin() { p.headers(false, ":status", "200", "content-type", "application/grpc") }

func (p *peer) data(end bool, b []byte) { _ = p.WriteData(1, end, b) }

func message(m proto.Message) []byte {
	b, _ := proto.Marshal(m)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

var answer = &rpc.AddReply{Addresses: []string{"10.0.0.1/32"}}

// The cases of the protocol that a grpc-go server does not produce at will.
func TestFrames(t *testing.T) {
	detailed := base64.StdEncoding.EncodeToString([]byte{8, 5, 18, 4, 'd', 'e', 'e', 'p'}) // code 5, message "deep", with padding
	for _, tc := range []struct {
		name string
		send func(*peer)
		want unary.Code
		text string // in the error's message
	}{
		{"a reply in pieces, padded, between other frames", func(p *peer) {
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
			_ = p.WriteSettingsAck()
			p.headers(false, ":status", "103", "link", "x")
			_ = p.WriteRawFrame(0xbe, 0, 1, []byte("unknown"))
			p.begin()
			_ = p.WritePing(false, [8]byte{1})
			_ = p.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
			m := message(answer)
			_ = p.WriteDataPadded(1, false, m[:3], []byte{0, 0, 0})
			_ = p.WriteRSTStream(7, http2.ErrCodeCancel)
			p.data(false, m[3:])
			p.headers(true, "grpc-status", "0")
		}, unary.OK, ""},
		{"headers in continuations", func(p *peer) {
			p.block.Reset()
			for _, f := range []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc+proto"}} {
				_ = p.enc.WriteField(f)
			}
			b := p.block.Bytes()
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:2]})
			_ = p.WriteContinuation(1, true, b[2:])
			p.data(false, message(answer))
			p.headers(true, "grpc-status", "0")
		}, unary.OK, ""},
		{"status alone, details padded", func(p *peer) {
			p.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "5", "grpc-message", "flat", "grpc-status-details-bin", detailed)
		}, unary.Code(codes.NotFound), "deep"},
		{"details of another code do not count", func(p *peer) {
			p.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "6", "grpc-message", "flat", "grpc-status-details-bin", detailed)
		}, unary.Code(codes.AlreadyExists), "flat"},
		{"damaged details do not count", func(p *peer) {
			p.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "5", "grpc-message", "100%", "grpc-status-details-bin", "?")
		}, unary.Code(codes.NotFound), "100%"},
		{"no status", func(p *peer) { p.begin(); p.headers(true, "x", "y") }, unary.Unknown, "grpc-status"},
		{"trailers that do not end", func(p *peer) { p.begin(); p.headers(false, "grpc-status", "0") }, unary.Internal, "trailers"},
		{"data that ends", func(p *peer) { p.begin(); p.data(true, message(answer)) }, unary.Internal, "without a status"},
		{"data before headers", func(p *peer) { p.data(false, message(answer)) }, unary.Internal, "protocol"},
		{"OK without a message", func(p *peer) { p.begin(); p.headers(true, "grpc-status", "0") }, unary.Internal, "no message"},
		{"two messages", func(p *peer) {
			p.begin()
			p.data(false, append(message(answer), message(answer)...))
			p.headers(true, "grpc-status", "0")
		}, unary.Internal, "announced"},
		{"a compressed message", func(p *peer) {
			p.begin()
			p.data(false, []byte{1, 0, 0, 0, 0})
			p.headers(true, "grpc-status", "0")
		}, unary.Internal, "compressed"},
		{"not gRPC", func(p *peer) { p.headers(true, ":status", "200", "content-type", "text/html") }, unary.Unknown, "text/html"},
		{"a proxy's error", func(p *peer) { p.headers(true, ":status", "503") }, unary.Unavailable, "503"},
		{"not found", func(p *peer) { p.headers(true, ":status", "404") }, unary.Unimplemented, "404"},
		{"no HTTP status", func(p *peer) { p.headers(true, "content-type", "application/grpc") }, unary.Unknown, "HTTP status"},
		{"refused", func(p *peer) { _ = p.WriteRSTStream(1, http2.ErrCodeRefusedStream) }, unary.Unavailable, "REFUSED"},
		{"reset", func(p *peer) { _ = p.WriteRSTStream(1, http2.ErrCodeCancel) }, unary.Canceled, "CANCEL"},
		{"calm", func(p *peer) { _ = p.WriteRSTStream(1, http2.ErrCodeEnhanceYourCalm) }, unary.ResourceExhausted, ""},
		{"a server's bug", func(p *peer) { _ = p.WriteRSTStream(1, http2.ErrCodeInternal) }, unary.Internal, ""},
		{"gone away before the call", func(p *peer) { _ = p.WriteGoAway(0, http2.ErrCodeNo, nil) }, unary.Unavailable, "ending"},
		{"a push", func(p *peer) {
			_ = p.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: []byte{0x82}, EndHeaders: true})
		}, unary.Internal, "protocol"},
		{"another stream's data", func(p *peer) { p.begin(); _ = p.WriteData(3, false, []byte("x")) }, unary.Internal, "protocol"},
		{"windows that overflow", func(p *peer) {
			_ = p.WriteWindowUpdate(0, 1<<31-1)
		}, unary.Internal, "protocol"},
		{"a window that settings overflow", func(p *peer) {
			_ = p.WriteWindowUpdate(1, 1<<31-1-65535)
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		}, unary.Internal, "protocol"},
		{"a setting out of range", func(p *peer) {
			p.AllowIllegalWrites = true
			_ = p.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})
		}, unary.Internal, "protocol"},
		{"a frame too large", func(p *peer) {
			_ = p.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 16385))
		}, unary.Internal, "protocol"},
		{"headers too large", func(p *peer) {
			p.block.Reset()
			for range 20 {
				_ = p.enc.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 4000), Sensitive: true})
			}
			b := p.block.Bytes()
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:16000]})
			for b = b[16000:]; len(b) > 16000; b = b[16000:] {
				_ = p.WriteContinuation(1, false, b[:16000])
			}
			_ = p.WriteContinuation(1, true, b)
		}, unary.Internal, ""},
		{"end of the connection", func(p *peer) { p.begin() }, unary.Unavailable, "connection"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var sent bytes.Buffer
			p := &peer{Framer: http2.NewFramer(&sent, nil)}
			p.enc = hpack.NewEncoder(&p.block)
			tc.send(p)
			reply, err := call(t.Context(), t, &scriptConn{Reader: &sent}, addMethod, &rpc.AddRequest{})
			wantCode(t, err, tc.want)
			if err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("message %q, want %q in it", err, tc.text)
			}
			if err == nil && !proto.Equal(reply, answer) {
				t.Errorf("reply %v, want %v", reply, answer)
			}
		})
	}
}

// A server may shrink the window below what was sent already, and must then
// give back more before it gets any.
func TestShrunkenWindow(t *testing.T) {
	l, socket := rpcfake.Listen(t)
	defer func() { _ = l.Close() }()
	client := dial(t, socket)
	server, err := l.Accept()
	must(t, err)
	got := make(chan []byte, 1)
	go func() {
		defer func() { _ = server.Close() }()
		if _, err := io.ReadFull(server, make([]byte, len(http2.ClientPreface))); err != nil {
			t.Error(err)
			return
		}
		p := &peer{Framer: http2.NewFramer(server, server)}
		p.enc = hpack.NewEncoder(&p.block)
		body := readData(t, p, 65535)
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 100_000})
		_ = p.WriteWindowUpdate(0, 1<<20)
		_ = p.WriteWindowUpdate(1, 65525) // the stream's window is 0 now
		_ = p.WritePing(false, [8]byte{7})
		if f := nextFrame(t, p, http2.FramePing); f == nil || !f.(*http2.PingFrame).IsAck() {
			t.Errorf("no answer to a ping")
		}
		_ = p.WriteWindowUpdate(1, 100)
		body = append(body, readData(t, p, 100)...)
		_ = p.WriteWindowUpdate(1, 1<<20)
		f, ok := nextFrame(t, p, http2.FrameData).(*http2.DataFrame)
		if !ok || !f.StreamEnded() {
			t.Error("the rest did not come in one frame, as the larger frame size allows")
			return
		}
		got <- append(body, f.Data()...)
		p.begin()
		p.data(false, message(answer))
		p.headers(true, "grpc-status", "0")
		_, _ = io.Copy(io.Discard, server)
	}()
	req := &rpc.AddRequest{Netns: strings.Repeat("x", 100_000)}
	if _, err := call(t.Context(), t, client, addMethod, req); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(<-got, message(req)) {
		t.Error("the request arrived otherwise than it was sent")
	}
}

// readData reads n bytes of the request, and fails when more came.
func readData(t *testing.T, p *peer, n int) []byte {
	var body []byte
	for len(body) < n {
		f, ok := nextFrame(t, p, http2.FrameData).(*http2.DataFrame)
		if !ok {
			return body
		}
		body = append(body, f.Data()...)
	}
	if len(body) > n {
		t.Errorf("%d bytes came, the window was %d", len(body), n)
	}
	return body
}

// nextFrame skips to the next frame of a type; data and pings are not skipped.
func nextFrame(t *testing.T, p *peer, kind http2.FrameType) http2.Frame {
	for {
		f, err := p.ReadFrame()
		if err != nil {
			t.Errorf("waiting for %v: %v", kind, err)
			return nil
		}
		switch got := f.Header().Type; {
		case got == kind:
			return f
		case got == http2.FrameData || got == http2.FramePing:
			t.Errorf("got %v, want %v", f, kind)
			return nil
		}
	}
}

// scriptConn is a connection on which everything was said beforehand.
type scriptConn struct{ io.Reader }

func (*scriptConn) Write(b []byte) (int, error)      { return len(b), nil }
func (*scriptConn) Close() error                     { return nil }
func (*scriptConn) LocalAddr() net.Addr              { return nil }
func (*scriptConn) RemoteAddr() net.Addr             { return nil }
func (*scriptConn) SetDeadline(time.Time) error      { return nil }
func (*scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (*scriptConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzFrames: whatever a server sends, the call ends, and with a reply or a
// status.
func FuzzFrames(f *testing.F) {
	for _, script := range []func(*peer){
		func(p *peer) { p.begin(); p.data(false, message(answer)); p.headers(true, "grpc-status", "0") },
		func(p *peer) {
			p.headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "5", "grpc-message", "%zz")
		},
		func(p *peer) { _ = p.WriteSettings(); _ = p.WritePing(false, [8]byte{}); _ = p.WriteGoAway(0, 1, nil) },
		func(p *peer) { _ = p.WriteWindowUpdate(1, 5); _ = p.WriteRSTStream(1, 8) },
	} {
		var b bytes.Buffer
		p := &peer{Framer: http2.NewFramer(&b, nil)}
		p.enc = hpack.NewEncoder(&p.block)
		script(p)
		f.Add(b.Bytes())
	}
	request := bytes.Repeat([]byte("x"), 70_000)
	f.Fuzz(func(t *testing.T, sent []byte) {
		_, err := unary.Call(context.Background(), &scriptConn{bytes.NewReader(sent)}, addMethod, request)
		var e *unary.Error
		if err != nil && (!errors.As(err, &e) || e.Code == unary.OK) {
			t.Errorf("error is no status: %#v", err)
		}
	})
}
