package awsvpccni

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/reach"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/foreign"
)

// Verify implements migrate.System.
func (n *Node) Verify(ctx context.Context) (migrate.Report, error) {
	r, err := migrate.Lasting(func() (migrate.Report, error) {
		r := migrate.Report{From: migrate.AmazonVPCCNI, Command: "verify"}
		s, err := n.survey(ctx)
		if err != nil {
			return r, err
		}
		r.Pods = s.plan().Pods
		r.Problems, err = verify(ctx, s, n.files.formerRuns(ctx), r.Pods)
		return r, err
	})
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("%d problems", len(r.Problems))
	}
	return r, err
}

// verify returns what is wrong with the node. runs is the error of formerRuns; pods learn how they were reached.
func verify(ctx context.Context, s survey, runs error, pods []migrate.Pod) (problems []string, err error) {
	problems = append(s.both(runs), s.twice()...)
	data, err := datapath.Open("")
	if err != nil {
		return problems, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	for _, r := range s.records {
		if r.Lease.Empty() || r.State != attachment.Ready {
			continue
		}
		if err := data.CheckPod(ctx, daemon.PodOf(r)); err != nil {
			problems = append(problems, fmt.Sprintf("%s/%s: %v", r.Pod.Namespace, r.Pod.Name, err))
		}
	}
	silent, err := reach.Pods(ctx, "", pods)
	return append(problems, silent...), err
}

// both describes how ipamd could hand out addresses of Berth's pods. runs is the error of formerRuns.
func (s survey) both(runs error) (list []string) {
	if len(s.records) == 0 {
		return nil
	}
	if runs != nil {
		list = append(list, runs.Error()+", beside Berth's pods")
	}
	if !s.aside && s.checkpoint.Version != "" {
		list = append(list, fmt.Sprintf("%s lets ipamd start, which would hand out addresses of Berth's pods: stop it and apply again", foreign.CheckpointName))
	}
	return list
}

// twice describes addresses with several owners, and rules that mislead packets of Berth's pods.
func (s survey) twice() (list []string) {
	for _, r := range s.records {
		for _, a := range r.Lease.Addrs() {
			for _, l := range s.links {
				if slices.Contains(l.addresses, a) && l.name != r.HostLink {
					list = append(list, fmt.Sprintf("%s of %s/%s is also behind link %s", a, r.Pod.Namespace, r.Pod.Name, l.name))
				}
			}
			for _, rule := range s.rules {
				if (rule.Priority == ruleToPod || rule.Priority == ruleFromPod) && rule.Address().Addr() == a {
					list = append(list, fmt.Sprintf("%s of %s/%s has the former rule %d", a, r.Pod.Namespace, r.Pod.Name, rule.Priority))
				}
			}
		}
	}
	for i, x := range s.links {
		for _, y := range s.links[:i] {
			for _, a := range x.addresses {
				if !x.isBerths() && !y.isBerths() && slices.Contains(y.addresses, a) {
					list = append(list, fmt.Sprintf("%s is behind links %s and %s", a, y.name, x.name))
				}
			}
		}
	}
	return list
}
