package podnics

import (
	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpcport"
)

// Networks are the VPCs whose providers are opened. Methods may be called concurrently,
// and read from memory alone.
type Networks interface {
	// Of is what is open of a VPC. The error says, for a person, why nothing is: there
	// is no such VPC, its credentials are refused. One that was open stays so while its
	// provider is away.
	Of(vpc string) (Opened, error)
	// Changed registers what is told the name of a VPC each time the answer of Of may
	// be another, also when the VPC is gone. It is quick.
	Changed(tell func(vpc string))
}

// Opened is a VPC whose provider is opened and has its network.
type Opened struct {
	UID      string // of its object
	Provider vpcport.Provider
	Network  vpcport.Network // as it was found last
	Spec     v1alpha1.VPCSpec
}
