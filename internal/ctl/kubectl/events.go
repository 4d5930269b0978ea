package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
)

// Events is the output of `kubectl berth events -o json`, oldest first.
type Events struct {
	Events []Event  `json:"events"`
	Unread []string `json:"unread"`
}

// Event is an Event of one of Berth's programs, or of a kubelet about a failure of Berth's plugin.
type Event struct {
	Last    time.Time `json:"last"`
	First   time.Time `json:"first"`
	Count   int       `json:"count"`
	Type    string    `json:"type"` // Normal or Warning
	Reason  string    `json:"reason"`
	Kind    string    `json:"kind"` // of the involved object
	Object  string    `json:"object"`
	From    string    `json:"from"`
	Message string    `json:"message"`
}

func newEvents(p *program) *cobra.Command {
	var out output
	var follow, warnings bool
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show events of Berth, newest last",
		Long: `Show events of berthd and berth-operator, and events of kubelets about a failure of
Berth's plugin, in all namespaces or in the namespace of -n, newest last. --follow
prints new events until you interrupt it; with -o json, it prints one line for each.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if follow && out == asYAML {
				return fmt.Errorf("--follow prints a table or JSON, not %s", out)
			}
			a, err := p.reach(cmd.Context())
			if err != nil {
				return err
			}
			ns := p.NamedNamespace() // empty: all namespaces
			keep := func(e Event) bool {
				return (!warnings || e.Type == corev1.EventTypeWarning) && (since == 0 || p.Now().Sub(e.Last) <= since)
			}
			list, version := readEvents(cmd.Context(), a, ns, keep)
			if !follow {
				return out.show(cmd, list, func(pr *view.Printer, wide bool) { writeEvents(pr, list, p.Now(), wide) })
			}
			return p.followEvents(cmd, a, ns, version, list, keep, out)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new events as they arrive")
	cmd.Flags().BoolVar(&warnings, "warnings", false, "warnings only")
	cmd.Flags().DurationVar(&since, "since", 0, "show events of at most this age; 0 shows all")
	out.register(cmd)
	return cmd
}

// readEvents lists Berth's events, and returns the resource version to watch from.
func readEvents(ctx context.Context, a *api, namespace string, keep func(Event) bool) (Events, string) {
	out := Events{Events: []Event{}}
	list, version := a.events(ctx, namespace, "", "")
	for _, e := range list {
		if ofBerth(e) {
			if e := eventOf(e); keep(e) {
				out.Events = append(out.Events, e)
			}
		}
	}
	slices.SortStableFunc(out.Events, func(a, b Event) int { return cmp.Or(a.Last.Compare(b.Last), cmp.Compare(a.Object, b.Object)) })
	out.Unread = a.unread.texts()
	return out, version
}

// ofBerth reports whether an event is from one of Berth's programs, or from a kubelet about Berth's plugin.
func ofBerth(e corev1.Event) bool {
	from := cmp.Or(e.ReportingController, e.Source.Component)
	return from == connect.DaemonName || from == connect.OperatorName ||
		e.Reason == "FailedCreatePodSandBox" && strings.Contains(e.Message, `type="berth"`)
}

func eventOf(e corev1.Event) Event {
	count := max(int(e.Count), 1)
	if e.Series != nil {
		count = max(count, int(e.Series.Count))
	}
	name := e.InvolvedObject.Name
	if e.InvolvedObject.Namespace != "" {
		name = e.InvolvedObject.Namespace + "/" + name
	}
	return Event{
		Last: diagnose.EventTime(e).UTC(), First: cmp.Or(e.FirstTimestamp.Time, e.EventTime.Time).UTC(), Count: count, Type: e.Type, Reason: e.Reason,
		Kind: e.InvolvedObject.Kind, Object: name, From: cmp.Or(e.ReportingController, e.Source.Component), Message: strings.TrimSpace(e.Message),
	}
}

func writeEvents(p *view.Printer, list Events, now time.Time, wide bool) {
	p.Table(eventGrid(list.Events, now, wide), "No recent events: Kubernetes keeps events for an hour.")
	notRead(p, list.Unread)
}

func eventGrid(list []Event, now time.Time, wide bool) *view.Grid {
	head := []string{"LAST", "COUNT", "TYPE", "REASON", "OBJECT", "MESSAGE"}
	if wide {
		head = []string{"LAST", "FIRST", "COUNT", "TYPE", "REASON", "OBJECT", "FROM", "MESSAGE"}
	}
	g := view.NewGrid(head...)
	for _, e := range list {
		object := e.Kind + " " + e.Object
		if wide {
			g.Add(view.Age(e.Last, now), view.Age(e.First, now), e.Count, e.Type, e.Reason, object, e.From, e.Message)
		} else {
			g.Add(view.Age(e.Last, now), e.Count, e.Type, e.Reason, object, e.Message)
		}
		if e.Type == corev1.EventTypeWarning {
			g.Tint(slices.Index(head, "TYPE"), view.Warn)
		}
	}
	return g
}

// rewatch is the minimum interval between watches, in case a proxy ends each at once.
const rewatch = time.Second

// followEvents prints a list and then new events, until the command is interrupted. It
// resumes a watch that the server ends. If the resource version has expired, it lists
// events again and prints those since the last one.
func (p *program) followEvents(cmd *cobra.Command, a *api, namespace, version string, list Events, keep func(Event) bool, out output) error {
	pr := &view.Printer{W: cmd.OutOrStdout(), Colours: colours(cmd.OutOrStdout())}
	var last time.Time
	show := func(e Event) error {
		if e.Last.After(last) {
			last = e.Last
		}
		if out == asJSON {
			return view.WriteLine(cmd.OutOrStdout(), e)
		}
		tone := view.Plain
		if e.Type == corev1.EventTypeWarning {
			tone = view.Warn
		}
		pr.Printf("%s %s %s %s: %s\n", e.Last.Local().Format("15:04:05"), view.Toned{Text: e.Type, Tone: tone}, e.Reason, e.Kind+" "+e.Object, e.Message)
		return pr.Err
	}
	showAll := func(list Events) error {
		since := last // an event of the same second may be printed twice, and none is lost
		for _, e := range list.Events {
			if e.Last.Before(since) {
				continue
			}
			if err := show(e); err != nil {
				return err
			}
		}
		if len(list.Unread) > 0 {
			return fmt.Errorf("could not be read: %s", strings.Join(list.Unread, "; "))
		}
		return nil
	}
	if err := showAll(list); err != nil {
		return err
	}
	for cmd.Context().Err() == nil {
		pause := time.NewTimer(rewatch)
		err := watch(cmd.Context(), a, eventsIn(namespace), nil, &version, func(e corev1.Event) error {
			if is := eventOf(e); ofBerth(e) && keep(is) {
				return show(is)
			}
			return nil
		})
		switch {
		case cmd.Context().Err() != nil: // interrupted by the user
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			list, version = readEvents(cmd.Context(), a, namespace, keep)
			if err := showAll(list); err != nil && cmd.Context().Err() == nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("follow events: %w", err)
		}
		select {
		case <-pause.C:
		case <-cmd.Context().Done():
		}
	}
	return nil
}
