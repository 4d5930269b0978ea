package ec2api

import (
	"slices"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// healthXML is one of the checks in DescribeInstanceStatus.
type healthXML struct {
	Status  string       `xml:"status"`
	Details []healthyXML `xml:"details>item"`
}

type healthyXML struct {
	Name   string `xml:"name"`
	Status string `xml:"status"`
}

// health returns the result of an instance's checks: they pass while it runs.
func health(s vpc.InstanceState) healthXML {
	switch s {
	case vpc.Running:
		return healthXML{"ok", []healthyXML{{"reachability", "passed"}}}
	case vpc.Pending:
		return healthXML{"initializing", []healthyXML{{"reachability", "initializing"}}}
	default:
		return healthXML{Status: "not-applicable"}
	}
}

type statusXML struct {
	ID       string    `xml:"instanceId"`
	Zone     string    `xml:"availabilityZone"`
	ZoneID   string    `xml:"availabilityZoneId"`
	State    stateXML  `xml:"instanceState"`
	System   healthXML `xml:"systemStatus"`
	Instance healthXML `xml:"instanceStatus"`
	EBS      healthXML `xml:"attachedEbsStatus"`
}

// describeInstanceStatus lists running instances, or all instances on request.
func describeInstanceStatus(r *request) (any, error) {
	ids, fs, p := r.list("InstanceId"), r.filters(), r.page("InstanceId", 1000)
	all, _ := r.truth("IncludeAllInstances")
	r.text("IncludeManagedResources")
	if err := r.ready(); err != nil {
		return nil, err
	}
	n, view := r.names(), r.cloud.Described()
	from := source[vpc.Instance]{"i", func(i *vpc.Instance) string { return i.ID }, view.Instances, view.Instance}
	list, err := from.pick(ids)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(i *vpc.Instance) bool { return !all && i.State != vpc.Running })
	row := func(i *vpc.Instance) statusXML {
		h := health(i.State)
		return statusXML{i.ID, i.Zone, n.zones[i.Zone], state(i.State), h, h, h}
	}
	list, err = apply(list, fs, filtering(statusFilters, row, nil))
	if err != nil {
		return nil, err
	}
	list, next := cut(r, p, list, from.id)
	return struct {
		Statuses []statusXML `xml:"instanceStatusSet>item"`
		Next     string      `xml:"nextToken,omitempty"`
	}{each(list, row), next}, nil
}
