package nodetemplate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/nodenetwork/template"
	"github.com/berthnet/berth/internal/statefile"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/samples"
	"github.com/berthnet/berth/test/harness/sourcenode"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

const (
	instance = "i-0a1b2c3d"
	nodeName = sourcenode.Name
)

// The daemon has the roles that the chart gives it.
func TestMain(m *testing.M) {
	os.Exit(harness.Kube(m.Run, func() error {
		return harness.ApplyAccessOf(context.Background(), deploy.Release{Values: map[string]any{
			"mode": deploy.NodeMode, "clusterName": "test", "nodeNetworkTemplates": map[string]any{"enabled": true},
		}})
	}))
}

// machine is a node whose daemon follows templates.
type machine struct {
	*sourcenode.Node
	*Follower
	reported chan string // the names of the choices that it reported
	stop     func()
}

// newMachine is one that is no Node yet.
func newMachine(t *testing.T, through ...transport.WrapperFunc) *machine {
	m := &machine{Node: sourcenode.New(t)}
	for _, w := range through {
		m.Config.Wrap(w)
	}
	return m
}

func nameOf(c *template.Choice) string {
	if c == nil {
		return "none"
	}
	return c.Name
}

// start starts the daemon's follower. It ends with the test at the latest.
func (m *machine) start() {
	m.T.Helper()
	f, err := newFollower(Config{NodeName: nodeName, InstanceID: instance, Dir: m.Dir, Logger: sourcetest.Logger(m.Log)}, m.Config)
	harness.OK(m.T, err)
	reported := make(chan string, 100)
	first, _ := f.Choice()
	f.OnChange(first, func(c *template.Choice) { reported <- nameOf(c) })
	ctx, cancel := context.WithCancel(m.T.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	m.Follower, m.reported = f, reported
	m.stop = func() {
		cancel()
		<-done
	}
	m.T.Cleanup(m.stop)
}

// tells waits for the next choice.
func (m *machine) tells(want string) {
	m.T.Helper()
	select {
	case got := <-m.reported:
		if got != want {
			m.T.Fatalf("the choice is %s, want %s", got, want)
		}
	case <-time.After(sourcenode.Longest):
		m.T.Fatalf("waited %v for the choice %s", sourcenode.Longest, want)
	}
}

func (m *machine) tellsNothing() {
	m.T.Helper()
	select {
	case got := <-m.reported:
		m.T.Fatalf("reported %s", got)
	case <-time.After(300 * time.Millisecond):
	}
}

// labelled has the Node have these labels.
func (m *machine) labelled(labels map[string]string) {
	m.T.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: labels}}
	if !m.Get(nodeName, &corev1.Node{}) {
		m.Create(n)
		return
	}
	was := &corev1.Node{}
	m.Get(nodeName, was)
	is := was.DeepCopy()
	is.Labels = labels
	harness.OK(m.T, m.API.Patch(m.T.Context(), is, client.MergeFrom(was)))
}

// template makes one for Nodes with the label group=NAME.
func (m *machine) template(name string, priority int32) *v1alpha1.NodeNetworkTemplate {
	m.T.Helper()
	o := &v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeNetworkTemplateSpec{
		NodeSelector: v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"group": "pods"}},
		Priority:     priority, ENI: v1alpha1.ENISpec{SubnetIDs: []string{"subnet-" + name}},
	}}
	m.Create(o)
	return o
}

var pods = map[string]string{"group": "pods"}

// The choice follows templates and the Node's labels, with the rights that the chart gives.
func TestChoiceFollows(t *testing.T) {
	m := newMachine(t)
	m.labelled(nil)
	m.template("a", 0)
	m.start()
	m.tells("none")
	m.labelled(pods)
	m.tells("NodeNetworkTemplate/a")
	b := m.template("b", 1)
	m.tells("NodeNetworkTemplate/b")
	was := b.DeepCopy()
	b.Spec.OutdatedENIs = v1alpha1.DrainOutdated
	harness.OK(t, m.API.Patch(t.Context(), b, client.MergeFrom(was)))
	m.tells("NodeNetworkTemplate/b")
	if c, known := m.Choice(); !known || !c.Drain || !slices.Equal(c.ENI.SubnetIDs, []string{"subnet-b"}) {
		t.Errorf("the choice is %+v", c)
	}
	harness.OK(t, m.API.Delete(t.Context(), b))
	m.tells("NodeNetworkTemplate/a")

	m.labelled(map[string]string{"group": "pods", "other": "x"})
	m.tellsNothing()
	harness.OK(t, m.API.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}))
	m.tellsNothing()
	m.labelled(nil)
	m.tells("none")
}

// Before there is a Node, nothing is chosen.
func TestNoChoiceWithoutANode(t *testing.T) {
	m := newMachine(t)
	m.template("a", 0)
	m.start()
	err := m.Await(t.Context())
	for errors.Is(err, errNotListed) {
		err = m.Await(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "there is no Node "+nodeName) {
		t.Fatalf("awaiting a choice: %v", err)
	}
	m.tellsNothing()
	m.labelled(pods)
	m.tells("NodeNetworkTemplate/a")
	harness.OK(t, m.Await(t.Context()))
}

// While the API server is away, the last choice counts from the first moment of a start,
// also that there is none; what changed meanwhile counts once it is back.
func TestStartWithoutAPIServer(t *testing.T) {
	m := newMachine(t)
	m.labelled(pods)
	a := m.template("a", 0)
	m.start()
	m.tells("NodeNetworkTemplate/a")
	m.stop()

	back := harness.WithoutAPIServer(t)
	m.start()
	harness.OK(t, m.Await(t.Context()))
	c, known := m.Choice()
	if !known || nameOf(c) != "NodeNetworkTemplate/a" || !slices.Equal(c.ENI.SubnetIDs, []string{"subnet-a"}) {
		t.Fatalf("the choice of the last daemon is %+v, %v", c, known)
	}
	m.tellsNothing()
	m.stop()
	back()
	harness.OK(t, m.API.Delete(t.Context(), a))
	m.start()
	m.tells("none")
	m.stop()

	back = harness.WithoutAPIServer(t)
	m.start()
	harness.OK(t, m.Await(t.Context()))
	if c, known := m.Choice(); !known || c != nil {
		t.Errorf("the choice of the last daemon is %+v, %v, want that there is none", c, known)
	}
	back()
}

// The last choice that could be had is known at the next start, also when the newest is another.
func TestCountedGoesOn(t *testing.T) {
	m := newMachine(t)
	m.labelled(pods)
	m.start()
	m.tells("none")
	if c := m.LastApplied(); c != nil {
		t.Errorf("%+v counted before the first start", c)
	}
	m.template("a", 0)
	m.tells("NodeNetworkTemplate/a")
	c, _ := m.Choice()
	m.RecordApplied(c)
	m.template("b", 1)
	m.tells("NodeNetworkTemplate/b")
	m.stop()
	m.start()
	if c, _ := m.Choice(); nameOf(c) != "NodeNetworkTemplate/b" || nameOf(m.LastApplied()) != "NodeNetworkTemplate/a" || !slices.Equal(m.LastApplied().ENI.SubnetIDs, []string{"subnet-a"}) {
		t.Errorf("the choice is %s, and %+v counted", nameOf(c), m.LastApplied())
	}
}

// Without a stored choice nothing counts while the API server is away: a file of another
// instance, or a damaged one, is none.
func TestNothingStored(t *testing.T) {
	for what, text := range map[string]string{
		"no file":              "",
		"another instance's":   `{"instanceID": "i-other", "name": "NodeNetworkTemplate/a", "eni": {"subnetIDs": ["subnet-a"]}}`,
		"damaged":              `{"instanceID": "i-0a1`,
		"a name alone":         `{"instanceID": "i-0a1b2c3d", "name": "NodeNetworkTemplate/a"}`,
		"of another format":    `{"version": 2, "instanceID": "i-0a1b2c3d"}`,
		"not of this instance": `{}`,
	} {
		t.Run(what, func(t *testing.T) {
			m := newMachine(t, away)
			if text != "" {
				harness.OK(t, os.WriteFile(filepath.Join(m.Dir, choiceFile), []byte(text), 0o600))
			}
			m.start()
			err := m.Await(t.Context())
			if err == nil || !strings.Contains(err.Error(), "following ") || !strings.Contains(err.Error(), errAway.Error()) {
				t.Errorf("awaiting a choice: %v", err)
			}
			if c, known := m.Choice(); known {
				t.Errorf("the choice is %+v", c)
			}
			damaged := !slices.Contains([]string{"no file", "another instance's", "not of this instance"}, what)
			if reported := m.Log.Count("the stored choice of a NodeNetworkTemplate is not used") > 0; reported != damaged {
				t.Errorf("reported a damaged file: %v", reported)
			}
		})
	}
}

var errAway = errors.New("there is no way to the API server")

// away is the way to an API server that is not there.
var away = harness.Through(func(*http.Request, http.RoundTripper) (*http.Response, error) { return nil, errAway })

// refusing answers every request for templates with a status.
func refusing(code int, reason string) transport.WrapperFunc {
	return harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !strings.Contains(r.URL.Path, templates) {
			return next.RoundTrip(r)
		}
		body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"` + reason + `"}`
		return &http.Response{
			StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
		}, nil
	})
}

// A kind that is not served, or not allowed, is reported as such, and what to do.
func TestRefusedByTheAPIServer(t *testing.T) {
	for what, through := range map[string]transport.WrapperFunc{
		"the kind is not served, install its CustomResourceDefinition":         refusing(http.StatusNotFound, "NotFound"),
		"berthd needs the right to list and watch nodenetworktemplates (the c": refusing(http.StatusForbidden, "Forbidden"),
	} {
		m := newMachine(t, through)
		m.labelled(nil)
		m.start()
		if err := m.Await(t.Context()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("awaiting a choice: %v, want %q", err, what)
		}
		m.stop()
	}
}

// The choice of every release is read, and what is written has all that each release reads.
func TestStoredChoice(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, choiceFile)
	samples.Check(t, samples.Format{Files: "template*.json", Type: reflect.TypeFor[stored](), Again: func(data []byte) ([]byte, error) {
		var of struct{ InstanceID string }
		if err := errors.Join(os.WriteFile(path, data, 0o600), statefile.Decode(data, &of)); err != nil {
			return nil, err
		}
		c, ok, err := load(dir, choiceFile, of.InstanceID)
		if err != nil || !ok {
			return nil, errors.Join(err, errors.New("it is not taken for this node's"))
		}
		if err := save(dir, choiceFile, of.InstanceID, c); err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}})
}
