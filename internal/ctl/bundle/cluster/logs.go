package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/ctl/connect"
)

// lineBytes is a lower bound of the average length of a log line. It converts a size to a
// number of lines to request.
const lineBytes = 64

// podLogs adds the logs of each container, or of those named, to a folder, and the logs of
// its previous run if it was restarted.
func (k *Cluster) podLogs(ctx context.Context, s *archive.Sink, p corev1.Pod, folder string, only ...string) error {
	var failed error
	statuses := append(append([]corev1.ContainerStatus{}, p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...)
	for _, c := range statuses {
		if len(only) > 0 && !slices.Contains(only, c.Name) {
			continue
		}
		for _, previous := range []bool{false, true} {
			if previous && c.RestartCount == 0 || c.State.Waiting != nil && c.RestartCount == 0 {
				continue
			}
			name := fmt.Sprintf("%s/logs/%s/%s.log", folder, p.Name, c.Name)
			if previous {
				name = strings.TrimSuffix(name, ".log") + ".previous.log"
			}
			if err := k.podLog(ctx, s, p, c.Name, previous, name); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", c.Name, err))
			}
		}
	}
	return failed
}

func (k *Cluster) podLog(ctx context.Context, s *archive.Sink, p corev1.Pod, container string, previous bool, name string) error {
	r, err := k.core.Get().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("log").
		Param("container", container).Param("previous", fmt.Sprint(previous)).Param("timestamps", "true").
		Param("sinceSeconds", fmt.Sprint(int64(k.Since.Seconds()))).Param("tailLines", fmt.Sprint(s.Most()/lineBytes)).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	return s.Log(name, r)
}

// folderOf returns the folder of a pod's logs in the bundle.
func folderOf(p corev1.Pod) string {
	if p.Labels[connect.NameLabel] == connect.DaemonName && p.Spec.NodeName != "" {
		return "nodes/" + p.Spec.NodeName
	}
	return "cluster"
}

// kubelet adds the kubelet's configuration, and its and the runtime's logs if the kubelet
// serves them (NodeLogQuery).
func (k *Cluster) kubelet(ctx context.Context, s *archive.Sink, node string) error {
	folder := "nodes/" + node
	proxy := func(path string) ([]byte, error) {
		return k.core.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix(path).Do(ctx).Raw()
	}
	settings, err := proxy("configz")
	if err == nil {
		err = s.Document(folder+"/kubelet-config.json", settings)
	}
	for _, unit := range []string{"kubelet", "containerd", "crio"} {
		r, logErr := k.core.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("logs/").
			Param("query", unit).Param("tailLines", fmt.Sprint(min(100000, s.Most()/lineBytes))).Stream(ctx)
		if logErr == nil {
			logErr = errors.Join(journal(s, fmt.Sprintf("%s/logs/journal-%s.log", folder, unit), r), r.Close())
		}
		if logErr != nil {
			return errors.Join(err, fmt.Errorf("log of %s: %w", unit, logErr))
		}
	}
	return err
}

// journal adds the log of a unit. A kubelet without NodeLogQuery ignores the query and
// responds with an HTML list of /var/log.
func journal(s *archive.Sink, name string, r io.Reader) error {
	in := bufio.NewReader(r)
	if start, _ := in.Peek(len("<!doctype html>")); strings.EqualFold(string(start), "<!doctype html>") || bytes.HasPrefix(start, []byte("<pre>")) {
		return errors.New("the kubelet does not serve it: see its enableSystemLogQuery")
	}
	return s.Log(name, in)
}
