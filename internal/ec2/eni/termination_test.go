package eni

import (
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

func TestDeleteOnTerminationPriority(t *testing.T) {
	for _, c := range []struct {
		due  time.Duration
		want cloud.Priority
		wait time.Duration
	}{
		{0, 0, 2 * time.Minute},
		{119 * time.Second, 0, time.Second},
		{2 * time.Minute, cloud.Begun, time.Hour},
		{3 * time.Minute, cloud.Begun, time.Hour},
		{-time.Second, 0, 121 * time.Second}, // the clock was set back
	} {
		if p, wait := deleteOnTerminationPriority(c.due, time.Hour); p != c.want || wait != c.wait {
			t.Errorf("due for %v: priority %d for %v, want %d for %v", c.due, p, wait, c.want, c.wait)
		}
	}
}

func TestDeleteOnTerminationOf(t *testing.T) {
	for _, c := range []struct {
		name string
		plan []plan.Action
		want []string
	}{
		{"nothing to do", nil, nil},
		{"after growth, in the order of the plan", []plan.Action{{Kind: plan.Create}, {Kind: plan.SetDeleteOnTermination, ENI: "b"}, {Kind: plan.SetDeleteOnTermination, ENI: "a"}}, []string{"b", "a"}},
		{"one that leaves", []plan.Action{{Kind: plan.Detach, ENI: "a"}, {Kind: plan.SetDeleteOnTermination, ENI: "a"}, {Kind: plan.SetDeleteOnTermination, ENI: "b"}}, []string{"b"}},
		{"another change", []plan.Action{{Kind: plan.Retag, ENI: "a"}}, nil},
	} {
		if got := deleteOnTerminationOf(c.plan); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
