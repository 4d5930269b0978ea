package eni

import (
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// The tags by which Berth knows its ENIs, given in the creation call itself.
const (
	TagCluster    = "berth.dev/cluster"
	TagInstanceID = "berth.dev/instance-id"
	TagOwner      = "berth.dev/owner"
	// TagCreatedAt says when Berth made an ENI, in RFC 3339; EC2 keeps no such time.
	TagCreatedAt = "berth.dev/created-at"
	// TagUnmanaged, with any value but "false", keeps Berth off an ENI.
	TagUnmanaged = "berth.dev/unmanaged"
	// TagNIC is on an ENI that is, or is to be, a branch: it has the address of a pod's
	// NIC, is made and deleted with that, and is never taken for one left behind.
	TagNIC = "berth.dev/nic"
)

// Owner is the value of TagOwner.
const Owner = "berth"

// Description is what Berth writes on an ENI that it makes for an instance.
func Description(instanceID string) string { return descriptionStart + instanceID + ")" }

const descriptionStart = "Berth ("

// primary tells whether an attachment is that of the ENI that came with the instance.
func primary(a *cloud.Attachment) bool {
	return a != nil && a.DeviceIndex == 0 && a.NetworkCard == 0
}

// hasPrimary tells whether the ENI that came with the instance is among some.
func hasPrimary(list []cloud.ENI) bool {
	return slices.ContainsFunc(list, func(e cloud.ENI) bool { return primary(e.Attachment) })
}

// unmanaged tells whether someone asked Berth to keep off.
func unmanaged(e cloud.ENI) bool {
	v, ok := e.Tags[TagUnmanaged]
	return ok && !strings.EqualFold(v, "false")
}

// creationTags are what a new ENI carries from its first moment.
func (c *Config) creationTags(now time.Time) map[string]string {
	return map[string]string{
		TagCluster:    c.Cluster,
		TagInstanceID: c.InstanceID,
		TagOwner:      Owner,
		TagCreatedAt:  now.UTC().Format(time.RFC3339),
	}
}
