package ec2api

import (
	"slices"
	"strings"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

func describeENIs(r *request) (any, error) {
	ids, fs, p := r.list("NetworkInterfaceId"), r.filters(), r.page("NetworkInterfaceId", 1000)
	r.text("IncludeManagedResources")
	if err := r.ready(); err != nil {
		return nil, err
	}
	n, view := r.names(), r.cloud.Described()
	if err := bounded(ids, fs, p, view); err != nil {
		return nil, err
	}
	from := source[vpc.ENI]{"eni", func(e *vpc.ENI) string { return e.ID }, func() []*vpc.ENI { return candidates(view, fs) }, view.ENI}
	list, next, err := listing(r, from, ids, fs, p, n.eniFiltering())
	return struct {
		ENIs []eniXML `xml:"networkInterfaceSet>item"`
		Next string   `xml:"nextToken,omitempty"`
	}{each(list, n.eni), next}, err
}

// maxUnpaginated is the maximum number of ENIs for DescribeNetworkInterfaces without pagination. EC2 only
// documents "a large number" (API Reference); the lab uses the maximum page size.
const maxUnpaginated = 1000

// bounded refuses to list too many ENIs without IDs, pagination or an indexed filter.
func bounded(ids []string, fs []filter, p page, view vpc.View) error {
	indexed := []string{"group-id", "mac-address", "private-dns-name", "private-ip-address", "subnet-id", "vpc-id"}
	for _, f := range fs {
		if slices.Contains(indexed, f.name) {
			return nil
		}
	}
	if len(ids) > 0 || p.size > 0 || p.after != "" || len(view.ENIs()) <= maxUnpaginated {
		return nil
	}
	return vpc.Errorf("OperationNotPermitted", "There are too many network interfaces for one reply: use pagination, or one of the filters %s.", strings.Join(indexed, ", "))
}

// candidates returns the ENIs of the instances that a filter without wildcards names, or else all ENIs.
func candidates(view vpc.View, fs []filter) []*vpc.ENI {
	for _, f := range fs {
		if f.name != "attachment.instance-id" || strings.ContainsAny(strings.Join(f.values, ""), `*?\`) {
			continue
		}
		var out []*vpc.ENI
		for _, id := range slices.Compact(slices.Sorted(slices.Values(f.values))) {
			out = append(out, view.InstanceENIs(id)...)
		}
		slices.SortFunc(out, func(a, b *vpc.ENI) int { return strings.Compare(a.ID, b.ID) })
		return out
	}
	return view.ENIs()
}

// tagSpecification reads the tags of new resources, by resource type.
func (r *request) tagSpecification(kinds ...string) map[string]vpc.Tags {
	out := map[string]vpc.Tags{}
	for _, p := range r.each("TagSpecification") {
		kind := r.need(p + "ResourceType")
		if kind != "" && !slices.Contains(kinds, kind) {
			r.fail(vpc.Errorf("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", kind))
		}
		if out[kind] == nil {
			out[kind] = vpc.Tags{}
		}
		for k, v := range r.tags(p + "Tag") {
			out[kind][k] = v
		}
	}
	return out
}

// tags reads NAME.N.Key and NAME.N.Value.
func (r *request) tags(name string) vpc.Tags {
	out := vpc.Tags{}
	for _, p := range r.each(name) {
		k := r.need(p + "Key")
		if _, twice := out[k]; twice {
			r.fail(vpc.Errorf("InvalidParameterValue", "Duplicate tag key '%s' specified.", k))
		}
		out[k] = r.text(p + "Value")
	}
	return out
}

func createENI(r *request) (any, error) {
	q := vpc.CreateRequest{
		SubnetID: r.need("SubnetId"), Groups: r.list("SecurityGroupId"), Type: r.text("InterfaceType"),
		Description: r.text("Description"), ClientToken: r.clientToken(), Requester: r.call.Principal.ARN,
		Tags: r.tagSpecification("network-interface")["network-interface"],
	}
	q.Primary, q.Addresses = r.addresses("")
	if err := r.ready(); err != nil {
		return nil, err
	}
	e, err := r.cloud.ENIs.Create(q)
	if err != nil {
		return nil, err
	}
	x := r.names().eni(&e)
	if e.Attachment == nil {
		x.Status = "pending"
	}
	return struct {
		ENI   eniXML `xml:"networkInterface"`
		Token string `xml:"clientToken,omitempty"`
	}{x, q.ClientToken}, nil
}

func attachENI(r *request) (any, error) {
	q := vpc.AttachRequest{ENIID: r.need("NetworkInterfaceId"), InstanceID: r.need("InstanceId")}
	r.need("DeviceIndex")
	q.DeviceIndex, _ = r.number("DeviceIndex")
	q.NetworkCard, _ = r.number("NetworkCardIndex")
	if err := r.ready(); err != nil {
		return nil, err
	}
	id, err := r.cloud.ENIs.Attach(q)
	if err != nil {
		return nil, err
	}
	return struct {
		ID   string `xml:"attachmentId"`
		Card int    `xml:"networkCardIndex"`
	}{id, q.NetworkCard}, nil
}

func detachENI(r *request) (any, error) {
	id := r.need("AttachmentId")
	force, _ := r.truth("Force")
	if err := r.ready(); err != nil {
		return nil, err
	}
	return done{true}, r.cloud.ENIs.Detach(id, force)
}

func deleteENI(r *request) (any, error) {
	id := r.need("NetworkInterfaceId")
	if err := r.ready(); err != nil {
		return nil, err
	}
	return done{true}, r.cloud.ENIs.Delete(id)
}

// describeENIAttribute returns one attribute of an ENI.
func describeENIAttribute(r *request) (any, error) {
	id, what := r.need("NetworkInterfaceId"), r.need("Attribute")
	if err := r.ready(); err != nil {
		return nil, err
	}
	e := r.cloud.Described().ENI(id)
	if e == nil {
		return nil, vpc.NotFound("eni", id)
	}
	type text struct {
		Value string `xml:"value"`
	}
	type truth struct {
		Value bool `xml:"value"`
	}
	x := r.names().eni(e)
	out := struct {
		ID              string         `xml:"networkInterfaceId"`
		Description     *text          `xml:"description"`
		SourceDestCheck *truth         `xml:"sourceDestCheck"`
		Groups          []groupXML     `xml:"groupSet>item"`
		Attachment      *attachmentXML `xml:"attachment"`
		PublicIP        *bool          `xml:"associatePublicIpAddress"`
	}{ID: id}
	switch what {
	case "description":
		out.Description = &text{x.Description}
	case "sourceDestCheck":
		out.SourceDestCheck = &truth{x.SourceDestCheck}
	case "groupSet":
		out.Groups = x.Groups
	case "attachment":
		out.Attachment = x.Attachment
	case "associatePublicIpAddress":
		out.PublicIP = new(bool)
	default:
		return nil, vpc.Errorf("InvalidParameterValue", "Value (%s) for parameter attribute is invalid. Unknown attribute.", what)
	}
	return out, nil
}

func modifyENI(r *request) (any, error) {
	id := r.need("NetworkInterfaceId")
	m := vpc.Modification{AttachmentID: r.text("Attachment.AttachmentId")}
	n := 0
	if m.Groups = r.list("SecurityGroupId"); len(m.Groups) > 0 {
		n++
	}
	if v, ok := r.lookup("Description.Value"); ok {
		m.Description = &v
		n++
	}
	if v, ok := r.truth("SourceDestCheck.Value"); ok {
		m.SourceDestCheck = &v
		n++
	}
	if v, ok := r.truth("Attachment.DeleteOnTermination"); ok {
		m.DeleteOnTermination = &v
		n++
		if m.AttachmentID == "" {
			r.need("Attachment.AttachmentId")
		}
	}
	if n != 1 {
		r.fail(vpc.Errorf("InvalidParameterCombination", "Exactly one attribute must be modified in a call, got %d", n))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	return done{true}, r.cloud.ENIs.Modify(id, m)
}

type trunkAssociationXML struct {
	ID       string `xml:"associationId"`
	BranchID string `xml:"branchInterfaceId"`
	TrunkID  string `xml:"trunkInterfaceId"`
	Protocol string `xml:"interfaceProtocol"`
	VLAN     int    `xml:"vlanId"`
}

func trunkAssociation(a *vpc.Association) trunkAssociationXML {
	return trunkAssociationXML{a.ID, a.BranchID, a.TrunkID, "VLAN", a.VLAN}
}

func associateTrunk(r *request) (any, error) {
	q := vpc.AssociateRequest{BranchID: r.need("BranchInterfaceId"), TrunkID: r.need("TrunkInterfaceId"), ClientToken: r.clientToken()}
	if _, gre := r.number("GreKey"); gre {
		r.fail(vpc.Errorf("UnsupportedOperation", "The lab does not support branch interfaces with the GRE protocol (GreKey)."))
	}
	r.need("VlanId")
	q.VLAN, _ = r.number("VlanId")
	if err := r.ready(); err != nil {
		return nil, err
	}
	a, err := r.cloud.ENIs.Associate(q)
	if err != nil {
		return nil, err
	}
	return struct {
		Association trunkAssociationXML `xml:"interfaceAssociation"`
		Token       string              `xml:"clientToken,omitempty"`
	}{trunkAssociation(&a), q.ClientToken}, nil
}

func disassociateTrunk(r *request) (any, error) {
	q := vpc.DisassociateRequest{AssociationID: r.need("AssociationId"), ClientToken: r.clientToken()}
	if err := r.ready(); err != nil {
		return nil, err
	}
	return struct {
		done
		Token string `xml:"clientToken,omitempty"`
	}{done{true}, q.ClientToken}, r.cloud.ENIs.Disassociate(q)
}

func describeTrunkAssociations(r *request) (any, error) {
	from := listed("trunk-assoc", r.cloud.Described().Associations(), func(a *vpc.Association) string { return a.ID })
	list, next, err := describe(r, "AssociationId", 255, from, filtering(trunkFilters, trunkAssociation, nil))
	return struct {
		Associations []trunkAssociationXML `xml:"interfaceAssociationSet>item"`
		Next         string                `xml:"nextToken,omitempty"`
	}{each(list, trunkAssociation), next}, err
}
