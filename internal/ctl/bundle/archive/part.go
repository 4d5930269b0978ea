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

// Part is something to collect. It may fail, hang or panic: the others go on.
type Part struct {
	Name    string
	Timeout time.Duration // what it has added by then stays
	Collect func(context.Context, *Sink) error
}

// Sink takes the files of one part until its time is over.
type Sink struct {
	a    *Archive
	part string
	most int64 // bytes of a file

	mu    sync.Mutex // guards ended
	ended bool
}

var errEnded = errors.New("its time is over")

// Collect collects parts, so many at a time, until all have ended or ctx has. The error
// is ctx's, or of the output.
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

// collect returns when the part has ended, or its time or ctx has; what hangs is left behind.
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

// add adds a file while the part has time.
func (s *Sink) add(name string, content []byte, cut bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	return s.a.add(s.part, name, content, cut)
}

// Failed notes something that the part cannot read, when it goes on with the rest.
func (s *Sink) Failed(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !s.ended {
		s.a.Failed(s.part+", "+what, err)
	}
}

// Log adds a stream of lines, of which the newest are kept. What was read before an
// error is added too.
func (s *Sink) Log(name string, r io.Reader) error { return s.keep(name, &newest{most: s.most}, r) }

// LogFile adds the end of a file of lines.
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

// Text adds text, of which the beginning is kept.
func (s *Sink) Text(name string, r io.Reader) error { return s.keep(name, &head{most: s.most}, r) }

func (s *Sink) keep(name string, k keeper, r io.Reader) error {
	content, cut, err := read(k, r)
	if len(content) == 0 && err != nil {
		return err
	}
	return errors.Join(err, s.add(name, content, cut))
}

// Document adds a JSON or YAML document, or a file that looks like one. A large one is
// taken for text.
func (s *Sink) Document(name string, data []byte) error {
	if int64(len(data)) > s.most {
		return s.Text(name, bytes.NewReader(data))
	}
	return s.add(name, redact.Document(data), false)
}

// Most is how large a file may be, in bytes.
func (s *Sink) Most() int64 { return s.most }
