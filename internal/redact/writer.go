package redact

import (
	"bytes"
	"io"
)

// maxLine is how many bytes of a line are kept. The rest is dropped, since a secret
// that is cut in two is not recognised.
const maxLine = 256 << 10

// maxKey is the maximum number of lines of a private key: an RSA key with 16384 bits has 200.
// A line that only mentions the beginning of a key does not remove the rest of a log.
const maxKey = 512

// Writer writes the lines of a stream without secrets. Close writes an incomplete last
// line.
type Writer struct {
	to    io.Writer
	line  []byte
	cut   bool // the line is longer than maxLine
	inKey bool // between the first and the last line of a private key
	keyed int  // lines since its first
}

// NewWriter returns a Writer to a writer.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		part := p
		if end >= 0 {
			part = p[:end+1]
		}
		p = p[len(part):]
		w.keep(part)
		if end >= 0 {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

// Close writes the rest. It does not close the underlying writer.
func (w *Writer) Close() error {
	if len(w.line) == 0 {
		return nil
	}
	return w.flush()
}

func (w *Writer) keep(part []byte) {
	if room := maxLine - len(w.line); len(part) > room {
		part, w.cut = part[:room], true
	}
	w.line = append(w.line, part...)
}

func (w *Writer) flush() error {
	line := w.line
	if w.cut { // a word that is cut is not recognised either
		line = append(line[:max(0, bytes.LastIndexAny(line, " \t"))], " [line cut]\n"...)
	}
	w.line, w.cut = w.line[:0], false
	if w.inKey {
		if at := keyEnd.FindIndex(line); at != nil {
			w.inKey = false
			line = line[at[1]:]
		} else if w.keyed++; w.keyed <= maxKey {
			return nil
		} else {
			w.inKey = false
		}
	}
	if begin := keyBegin.FindAllIndex(line, -1); begin != nil {
		w.keyed = 0
		ends := keyEnd.FindAllIndex(line, -1)
		w.inKey = len(ends) == 0 || ends[len(ends)-1][0] < begin[len(begin)-1][0]
		if !w.inKey {
			_, err := io.WriteString(w.to, Text(string(line)))
			return err
		}
		_, err := io.WriteString(w.to, Text(string(line))+"\n")
		return err
	}
	_, err := io.WriteString(w.to, Line(string(line)))
	return err
}

// Tail removes the rest of a private key whose beginning was cut off with the beginning
// of a text.
func Tail(data []byte) []byte { return keyRest.ReplaceAll(data, []byte(Mark)) }
