package crashsource

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/source"
)

// Requests to a child, with a pod's number, and its replies.
const (
	verbDel    = "del"
	answerDone = "done"
)

// Leases is a directory of pods' addresses by number, like the daemon's attachment records: a restarted child
// restores the leases from before its death.
type Leases string

func (l Leases) file(pod int) string { return filepath.Join(string(l), strconv.Itoa(pod)) }

// All reads the leases; a child may write concurrently.
func (l Leases) All() (map[int]source.Lease, error) {
	files, err := os.ReadDir(string(l))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	out := map[int]source.Lease{}
	for _, f := range files {
		pod, err := strconv.Atoi(f.Name())
		if err != nil {
			continue // being written
		}
		data, err := os.ReadFile(l.file(pod))
		if errors.Is(err, os.ErrNotExist) {
			continue // released meanwhile
		}
		var lease source.Lease
		if err := errors.Join(err, json.Unmarshal(data, &lease)); err != nil {
			return nil, fmt.Errorf("read the lease of pod %d: %w", pod, err)
		}
		out[pod] = lease
	}
	return out, nil
}

// Serve restores a source's leases, runs it, and executes the requests in in, "add POD" or "del POD" one per line,
// replying to each with a line to out, until in ends. An add waits up to wait for an address.
func (l Leases) Serve(s source.Source, request func(pod int) source.Request, wait time.Duration, in io.Reader, out io.Writer) error {
	if err := os.MkdirAll(string(l), 0o700); err != nil {
		return fmt.Errorf("create the directory of leases: %w", err)
	}
	leases, err := l.All()
	if err != nil {
		return err
	}
	for pod, lease := range leases {
		if err := s.Restore(request(pod), lease); err != nil {
			return fmt.Errorf("restore the lease of pod %d: %w", pod, err)
		}
	}
	go func() { _ = s.Run(context.Background()) }()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		verb, number, _ := strings.Cut(lines.Text(), " ")
		pod, err := strconv.Atoi(number)
		if err != nil {
			return fmt.Errorf("request %q: expected a verb and a pod's number", lines.Text())
		}
		if verb == verbDel {
			if err = os.Remove(l.file(pod)); errors.Is(err, os.ErrNotExist) {
				err = nil // the child died after the deletion
			}
			s.Release(request(pod).Key)
		} else {
			err = l.add(s, pod, request(pod), wait)
		}
		if err != nil {
			fmt.Fprintln(out, "error", err)
		} else {
			fmt.Fprintln(out, answerDone)
		}
	}
	return lines.Err()
}

func (l Leases) add(s source.Source, pod int, req source.Request, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lease, err := s.Acquire(ctx, req)
	if err != nil {
		return err
	}
	data, err := json.Marshal(lease)
	if err != nil {
		return fmt.Errorf("encode a lease: %w", err)
	}
	return Replace(l.file(pod), data)
}

// Replace writes a file completely or not at all, however the process ends.
func Replace(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
