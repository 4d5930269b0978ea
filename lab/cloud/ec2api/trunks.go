package ec2api

import "github.com/berthnet/berth/lab/cloud/vpc"

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
		r.fail(vpc.Errorf("UnsupportedOperation", "The lab has no branch interfaces of the protocol GRE, which GreKey asks for."))
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
