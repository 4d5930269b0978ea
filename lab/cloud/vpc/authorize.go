package vpc

import (
	"net/http"
	"strings"

	"github.com/berthnet/berth/lab/cloud/iam"
)

// Target is a resource that a call names, for a permission check of an action on it.
type Target struct {
	Action string // without "ec2:"; mostly the action of the call
	// ID is the resource's ID. An attachment stands for its ENI and its instance.
	ID string
	// Creates is the kind of a resource that the call creates, such as "network-interface", instead of an ID.
	Creates string
	Subnet  string // ID of the new resource's subnet, if any
	// Tags are the tags that the call adds to the resource.
	Tags map[string]string
	// CreateAction is the action that creates the tagged resource, for CreateTags on a new one.
	CreateAction string
}

// permit checks the principal's permissions: for the action at all, then for each resource that the call
// names (Service Authorization Reference, "Actions, resources, and condition keys for Amazon EC2"). It
// skips resources that do not exist: the action reports them. The caller must hold the lock.
func (api *API) permit(call Call) *Error {
	if call.Principal.Policy.Never(name(call.Action)) || api.denied(call.Action) {
		return unauthorized(call.Principal, call.Action, "")
	}
	requests := api.authorizer.requests(call)
	if len(call.Targets) == 0 {
		requests = []iam.Request{{Action: name(call.Action), Resource: "*", Keys: map[string][]string{}}}
	}
	for _, r := range requests {
		if id := call.Principal.InstanceID; id != "" {
			r.Keys[iam.SourceInstance] = []string{api.authorizer.arn("instance", id)}
		}
		action := strings.TrimPrefix(r.Action, "ec2:")
		if api.denied(action) || call.Principal.Policy.Decide(r) != iam.Allowed {
			return unauthorized(call.Principal, action, r.Resource)
		}
	}
	return nil
}

// name returns an action as IAM writes it.
func name(action string) string { return "ec2:" + action }

// denied reports whether Deny covers an action. The caller must hold the lock.
func (api *API) denied(action string) bool {
	for p := range api.denials {
		if Covers(p, action) {
			return true
		}
	}
	return false
}

func unauthorized(who Principal, action, resource string) *Error {
	on := ""
	if resource != "" && resource != "*" {
		on = " on resource: " + resource
	}
	return &Error{"UnauthorizedOperation", http.StatusForbidden, "You are not authorized to perform this operation. User: " +
		who.ARN + " is not authorized to perform: " + name(action) + on + " because no identity-based policy allows the " + name(action) + " action"}
}

// authorizer turns calls into IAM requests. The world's lock guards the state that it reads.
type authorizer struct {
	store           *store
	attachments     *attachments
	region, account string
}

// requests returns the IAM requests for a call. The caller must hold the lock.
func (az *authorizer) requests(call Call) (out []iam.Request) {
	for _, t := range call.Targets {
		for _, r := range az.resources(t) {
			r.Action = name(t.Action)
			for tag, value := range t.Tags {
				r.Keys[iam.RequestTag(tag)] = []string{value}
				r.Keys[iam.TagKeys] = append(r.Keys[iam.TagKeys], tag)
			}
			if t.CreateAction != "" {
				r.Keys[iam.CreateAction] = []string{t.CreateAction}
			}
			out = append(out, r)
		}
	}
	return out
}

// arnKinds maps the prefixes of IDs to the resource types of ARNs.
var arnKinds = map[string]string{
	"eni": "network-interface", "i": "instance", "subnet": "subnet", "sg": "security-group", "vpc": "vpc", "rtb": "route-table",
}

// resources returns the existing resources that a target stands for.
func (az *authorizer) resources(t Target) []iam.Request {
	if t.Creates != "" {
		keys := map[string][]string{}
		if s := az.store.subnets.get(t.Subnet); s != nil {
			keys[iam.Subnet], keys[iam.VPC] = []string{az.arn("subnet", s.ID)}, []string{az.arn("vpc", s.VPCID)}
		}
		return []iam.Request{{Resource: az.arn(t.Creates, "*"), Keys: keys}}
	}
	if strings.HasPrefix(t.ID, "eni-attach-") {
		e := az.store.enis.get(az.attachments.byID[t.ID])
		if e == nil || e.Attachment == nil {
			return nil
		}
		return append(az.resources(Target{ID: e.ID}), az.resources(Target{ID: e.Attachment.InstanceID})...)
	}
	tags, _, err := az.store.tagged(t.ID)
	if err != nil {
		return nil
	}
	prefix, _, _ := strings.Cut(t.ID, "-")
	keys := map[string][]string{}
	if prefix == "i" {
		keys[iam.InstanceID] = []string{t.ID}
	}
	for tag, value := range tags {
		keys[iam.ResourceTag(tag)] = []string{value}
	}
	vpc, subnet := az.store.place(t.ID)
	if vpc != "" {
		keys[iam.VPC] = []string{az.arn("vpc", vpc)}
	}
	if subnet != "" {
		keys[iam.Subnet] = []string{az.arn("subnet", subnet)}
	}
	return []iam.Request{{Resource: az.arn(arnKinds[prefix], t.ID), Keys: keys}}
}

func (az *authorizer) arn(kind, id string) string {
	return "arn:aws:ec2:" + az.region + ":" + az.account + ":" + kind + "/" + id
}
