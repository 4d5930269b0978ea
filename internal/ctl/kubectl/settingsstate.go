package kubectl

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ctl/connect"
	"github.com/berthnet/berth/internal/ctl/view"
)

// SettingsState summarizes the differences between the cluster and the release that Helm has recorded.
type SettingsState struct {
	Release     string `json:"release,omitempty"`
	Revision    int    `json:"revision,omitempty"`
	Drifted     int    `json:"drifted"` // fields and missing objects
	NotCompared string `json:"notCompared,omitempty"`
	// Programs are the differences between the arguments and environments of Berth's pods and those that the chart installed.
	Programs []ProgramDrift `json:"programs,omitempty"`
}

// ProgramDrift is one such difference, with the number of a program's pods that have it.
type ProgramDrift struct {
	Program string `json:"program"`
	Pods    int    `json:"pods"`
	Change  string `json:"change"`
}

// programDrift compares the pods of berthd and berth-operator with the chart's record in them.
func programDrift(o objects) (out []ProgramDrift) {
	count := func(program string, settings []config.Setting, pods []*corev1.Pod) {
		found := map[string]int{}
		for _, pod := range pods {
			c, _ := connect.Container(pod, program)
			env := map[string]*string{}
			for i := range c.Env {
				if env[c.Env[i].Name] = &c.Env[i].Value; c.Env[i].ValueFrom != nil {
					env[c.Env[i].Name] = nil
				}
			}
			for _, change := range config.DriftOf(settings, c.Args, env).Changes {
				found[change]++
			}
		}
		for _, change := range slices.Sorted(maps.Keys(found)) {
			out = append(out, ProgramDrift{program, found[change], change})
		}
	}
	var daemons, operators []*corev1.Pod
	for _, d := range o.daemons {
		daemons = append(daemons, d.pod)
	}
	for i := range o.operator.pods {
		operators = append(operators, &o.operator.pods[i])
	}
	count(connect.DaemonName, config.Settings(), daemons)
	count(connect.OperatorName, config.OperatorSettings(), operators)
	return out
}

// releaseState compares the release with the cluster, if the user may read both.
func releaseState(ctx context.Context, p *program) *SettingsState {
	a, err := p.connect() // its failed reads are not problems of the status
	var s *settings
	var found []difference
	if err == nil {
		if s, err = a.settings(ctx, p.daemons); err == nil {
			found, err = a.drift(ctx, s)
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		return &SettingsState{NotCompared: "your rights do not include reading the Helm release and its objects"}
	case err != nil:
		return &SettingsState{NotCompared: err.Error()}
	}
	return &SettingsState{Release: s.release.Name, Revision: s.release.Version, Drifted: len(found)}
}

func (s *SettingsState) write(p *view.Printer) {
	switch {
	case s == nil:
	case s.NotCompared != "":
		p.Printf("Settings: not compared with the Helm release: %s\n", s.NotCompared)
	case s.Drifted == 0:
		p.Printf("Settings: as in Helm release %s, revision %d\n", s.Release, s.Revision)
	default:
		p.Printf("Settings: %s from Helm release %s, revision %d: kubectl berth settings --diff lists them\n",
			view.Toned{Text: view.Count(s.Drifted, "difference"), Tone: view.Warn}, s.Release, s.Revision)
	}
	if s == nil {
		return
	}
	for _, d := range s.Programs {
		p.Printf("%s %s on %s: %s\n", view.Toned{Text: "Changed:", Tone: view.Warn}, d.Program, view.Count(d.Pods, "pod"), d.Change)
	}
}
