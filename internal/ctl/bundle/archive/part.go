package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/redact"
)

// Part is something to collect. If it fails, hangs or panics, the other parts continue.
type Part struct {
	Name    string
	Timeout time.Duration // files added before it are kept
	Collect func(context.Context, *Sink) error
}

// Sink accepts the files of one part until the part's timeout.
type Sink struct {
	a    *Archive
	part string
	most int64 // bytes of a file

	mu    sync.Mutex // guards ended
	ended bool
}

var errEnded = errors.New("its time is over")

// Collect collects parts, atOnce at a time, until all are finished or ctx ends. It returns
// the error of ctx or of the output; those of parts are recorded in the bundle.
func (a *Archive) Collect(ctx context.Context, atOnce int, parts []Part) error {
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, p := range parts {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || a.broken() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			a.collect(ctx, p)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return a.broken()
}

// collect returns when the part is finished, its timeout expires or ctx ends. A part that hangs is abandoned.
func (a *Archive) collect(ctx context.Context, p Part) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Timeout, fmt.Errorf("not done within %s", p.Timeout))
	defer cancel()
	sink := &Sink{a: a, part: p.Name, most: a.limits.File}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("panic: %v", r)
			}
		}()
		done <- p.Collect(ctx, sink)
	}()
	var err error
	select {
	case err = <-done:
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = context.Cause(ctx)
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	sink.end()
	if err != nil {
		a.Failed(p.Name, err)
	}
}

func (s *Sink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// add adds a file, unless the part has timed out.
func (s *Sink) add(name string, content []byte, cut bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	return s.a.add(s.part, name, content, cut)
}

// Failed records an error of a part that continues with the rest. It ignores a nil error.
func (s *Sink) Failed(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !s.ended {
		s.a.Failed(s.part+", "+what, err)
	}
}

// Log adds a stream of lines and keeps the newest. What was read before an error is added too.
func (s *Sink) Log(name string, r io.Reader) error { return s.keep(name, &newest{most: s.most}, r) }

// LogFile is like Log, for a file.
func (s *Sink) LogFile(name string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	surplus := max(0, info.Size()-s.most)
	if _, err := f.Seek(surplus, io.SeekStart); err != nil {
		return err
	}
	return s.keep(name, &newest{most: s.most, cut: surplus > 0}, f)
}

// Text adds text and keeps its beginning.
func (s *Sink) Text(name string, r io.Reader) error { return s.keep(name, &head{most: s.most}, r) }

// Bytes is like Text, for content in memory.
func (s *Sink) Bytes(name string, data []byte) error { return s.Text(name, bytes.NewReader(data)) }

func (s *Sink) keep(name string, k keeper, r io.Reader) error {
	content, cut, err := read(k, r)
	if len(content) == 0 && err != nil {
		return err
	}
	return errors.Join(err, s.add(name, content, cut))
}

// Document adds a JSON or YAML document and removes secrets by the names of its fields. One
// that exceeds the file size is added as text.
func (s *Sink) Document(name string, data []byte) error {
	if int64(len(data)) > s.most {
		return s.Text(name, bytes.NewReader(data))
	}
	return s.add(name, redact.Document(data), false)
}

// Most returns the maximum size of a file, in bytes.
func (s *Sink) Most() int64 { return s.most }
