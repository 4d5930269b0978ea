package archive

import (
	"bytes"
	"io"

	"github.com/berthnet/berth/internal/redact"
)

// cutHere stands where something was left out.
const cutHere = "# truncated here: the file exceeds its maximum size\n"

// head keeps the beginning of a stream.
type head struct {
	buf  bytes.Buffer
	most int64
	cut  bool
}

func (h *head) Write(p []byte) (int, error) {
	n := len(p)
	if room := h.most - int64(h.buf.Len()); int64(n) > room {
		p, h.cut = p[:max(0, room)], true
	}
	h.buf.Write(p)
	return n, nil
}

func (h *head) content() ([]byte, bool) {
	if h.cut {
		h.buf.WriteString("\n" + cutHere)
	}
	return h.buf.Bytes(), h.cut
}

// newest keeps the end of a stream, from the beginning of a line. It needs up to twice the
// memory of what it keeps.
type newest struct {
	old, now bytes.Buffer // each holds up to half of most
	most     int64
	cut      bool
}

func (n *newest) Write(p []byte) (int, error) {
	half := n.most/2 + 1
	for rest := p; len(rest) > 0; {
		room := half - int64(n.now.Len())
		if room == 0 {
			n.cut = n.cut || n.old.Len() > 0
			n.old, n.now = n.now, n.old
			n.now.Reset()
			continue
		}
		part := rest[:min(int64(len(rest)), room)]
		n.now.Write(part)
		rest = rest[len(part):]
	}
	return len(p), nil
}

func (n *newest) content() ([]byte, bool) {
	all := append(bytes.Clone(n.old.Bytes()), n.now.Bytes()...)
	if !n.cut {
		return all, false
	}
	if i := bytes.IndexByte(all, '\n'); i >= 0 {
		all = all[i+1:]
	}
	return append([]byte(cutHere), redact.Tail(all)...), true
}

// keeper keeps a part of what is written to it.
type keeper interface {
	io.Writer
	content() (content []byte, cut bool)
}

// read reads a stream into a keeper and removes secrets. With an error it returns what was
// read before.
func read(k keeper, r io.Reader) (content []byte, cut bool, err error) {
	w := redact.NewWriter(k)
	_, err = io.Copy(w, r)
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	content, cut = k.content()
	return content, cut, err
}
