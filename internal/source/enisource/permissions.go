package enisource

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/source"
)

// refusalLasts is how long an action counts as refused after the last refusal. Actions that the node still needs are
// tried again within minutes.
const refusalLasts = time.Hour

// without describes the node without an action, by EC2's name.
var without = map[string]string{
	pace.DescribeInstances.Action:      "the ENIs of the node are not known, and it gets no new addresses",
	pace.DescribeENIs.Action:           "the addresses of the node are not known, and it gets no new ones",
	pace.DescribeTypes.Action:          "the limits of the instance type come from Berth's own table, and unknown types get no addresses",
	pace.DescribeSubnets.Action:        "the subnets of its ENIs are not known, and the node gets no new addresses",
	pace.DescribeRouteTables.Action:    "new ENIs may be in subnets whose routes differ from those of the primary ENI",
	pace.DescribeSecurityGroups.Action: "security groups are not found by tags, and no ENI is created",
	pace.CreateENI.Action:              "the node has only the addresses of its present ENIs; it also takes ec2:CreateTags",
	pace.AttachENI.Action:              "the node has only the addresses of its present ENIs",
	pace.Tag.Action:                    "ENIs that another node left keep the tags of that node",
	pace.Assign.Action:                 "ENIs keep the IPv4 addresses that they have and get no more",
	pace.AssignIPv6.Action:             "ENIs keep the IPv6 addresses that they have and get no more",
	pace.Unassign.Action:               "surplus IPv4 addresses stay assigned",
	pace.UnassignIPv6.Action:           "surplus IPv6 addresses stay assigned",
	pace.DetachENI.Action:              "idle ENIs stay attached",
	pace.DeleteENI.Action:              "detached ENIs are not deleted",
	pace.ModifyENI.Action:              "ENIs are not deleted with their instance, and do not follow the security groups of the primary ENI",
}

// refused is the code of a call that no statement of the caller's policies allows.
const refused = "UnauthorizedOperation"

// Permissions knows which actions EC2 refuses to this process for want of a permission. It is a pace.Observer in
// front of another one.
type Permissions struct {
	pace.Observer
	clock clock.Clock
	log   *slog.Logger

	mu       sync.Mutex // guards refusals
	refusals map[string]refusal
}

// refusal is what EC2 last said of an action.
type refusal struct {
	at       time.Time // the last refusal; zero if a call was allowed since
	logged   time.Time // the last line about it
	reported bool      // the refusal was logged
}

// NewPermissions returns an observer that passes everything on to next.
func NewPermissions(next pace.Observer, c clock.Clock, log *slog.Logger) *Permissions {
	return &Permissions{Observer: next, clock: c, log: log, refusals: map[string]refusal{}}
}

// Call implements pace.Observer. The log has a line about an action when it is refused and when it is allowed again,
// at most one each in an hour: EC2 may allow an action for some resources only.
func (p *Permissions) Call(op, code string, took time.Duration) {
	p.Observer.Call(op, code, took)
	switch p.note(op, code) {
	case refused:
		p.log.Warn("EC2 refuses an action: allow it in the IAM role that Berth uses", "action", "ec2:"+op, "without", without[op])
	case pace.CodeOK:
		p.log.Info("EC2 allows an action again", "action", "ec2:"+op)
	}
}

// note records the result of a call, and returns it if it is to be logged.
func (p *Permissions) note(op, code string) (log string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	r, known := p.refusals[op]
	switch {
	case code == refused:
		r.at = now
		if r.logged.IsZero() || now.Sub(r.logged) >= refusalLasts && !r.reported {
			log, r.logged, r.reported = refused, now, true
		}
	case code == pace.CodeOK && known:
		r.at = time.Time{}
		if r.reported {
			log, r.reported = pace.CodeOK, false
		}
	default:
		return ""
	}
	p.refusals[op] = r
	return log
}

// condition reports the actions that were refused lately.
func (p *Permissions) condition() source.Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(p.refusals)) {
		if now.Sub(p.refusals[op].at) < refusalLasts {
			parts = append(parts, fmt.Sprintf("ec2:%s (without it, %s)", op, without[op]))
		}
	}
	if len(parts) == 0 {
		return source.Condition{Type: conditionActions, Healthy: true, Reason: "Allowed"}
	}
	return source.Condition{Type: conditionActions, Reason: "Refused", Message: "EC2 refuses " + strings.Join(parts, ", ") +
		": allow the actions in the IAM role that Berth uses; if the policy depends on tags, tag the instance and its primary ENI"}
}
