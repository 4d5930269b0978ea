package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/ctl/connect"
)

// program is the path of berthctl in the image of berthd.
const program = "/berthctl"

// maxStderr bounds the program's standard error that is kept, in bytes.
const maxStderr = 16 << 10

// node adds the bundle that berthctl writes in a node's berthd pod.
func (k *Cluster) node(ctx context.Context, s *archive.Sink, node string) error {
	pod, ok := k.daemons()[node]
	switch {
	case !ok && k.noPods != nil:
		return fmt.Errorf("the berthd pod of the node is unknown: %w", k.noPods)
	case !ok:
		return fmt.Errorf("no pod with %s=%s runs on it: run berthctl support-bundle on the node itself", connect.NameLabel, connect.DaemonName)
	case pod.Status.Phase != corev1.PodRunning:
		return fmt.Errorf("pod %s/%s of berthd is %s: run berthctl support-bundle on the node itself", pod.Namespace, pod.Name, pod.Status.Phase)
	}
	args := []string{
		program, "support-bundle", "--local", "--output=-", "--since=" + k.Since.String(), "--timeout=" + k.Timeout.String(), "--max-file-size=" + k.FileSize,
	}
	r, w := io.Pipe()
	stderr := &bounded{most: maxStderr}
	ended := make(chan error, 1)
	go func() {
		err := k.exec(ctx, pod, args, w, stderr)
		_ = w.CloseWithError(err)
		ended <- err
	}()
	err := s.Copy("nodes/"+node, r)
	_ = r.CloseWithError(errors.New("the bundle is read")) // ends the program if it goes on
	execErr := <-ended
	switch {
	case err == nil:
		return nil
	case execErr != nil && !errors.Is(execErr, io.ErrClosedPipe) && ctx.Err() == nil:
		err = fmt.Errorf("running %s in pod %s/%s: %w", program, pod.Namespace, pod.Name, execErr)
	}
	if text := strings.TrimSpace(stderr.String()); text != "" {
		err = fmt.Errorf("%w; it says: %s", err, text)
	}
	return err
}

// exec runs a program in berthd's container, over WebSocket, or over SPDY if the server or a
// proxy does not support it.
func (k *Cluster) exec(ctx context.Context, pod corev1.Pod, args []string, out, stderr io.Writer) error {
	container, _ := connect.Container(&pod, connect.DaemonName)
	req := k.core.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").
		Param("container", container.Name).Param("stdout", "true").Param("stderr", "true")
	for _, arg := range args {
		req = req.Param("command", arg)
	}
	url := req.URL()
	web, err := remotecommand.NewWebSocketExecutor(k.cfg, "GET", url.String())
	if err != nil {
		return err
	}
	old, err := remotecommand.NewSPDYExecutor(k.cfg, "POST", url)
	if err != nil {
		return err
	}
	both, err := remotecommand.NewFallbackExecutor(web, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, logr.Discard()) // the error has what the library logs
	return both.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: stderr})
}

// bounded keeps the beginning of what is written. It has a lock because the library may
// write even after it has returned.
type bounded struct {
	most int

	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Write(p[:max(0, min(len(p), b.most-b.buf.Len()))])
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
