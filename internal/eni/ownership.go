package eni

import (
	"maps"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// The tags by which Berth knows its ENIs, given in the creation call itself.
const (
	TagCluster    = "berth.dev/cluster"
	TagInstanceID = "berth.dev/instance-id"
	TagOwner      = "berth.dev/owner"
	TagCreatedAt  = cloud.TagCreatedAt
	// TagUnmanaged, with any value but "false", keeps Berth off an ENI.
	TagUnmanaged = "berth.dev/unmanaged"
)

// Owner is the value of TagOwner.
const Owner = "berth"

// Description is what Berth writes on an ENI that it makes for an instance.
func Description(instanceID string) string { return descriptionStart + instanceID + ")" }

const descriptionStart = "Berth ("

// primary tells whether an ENI came with the instance.
func primary(e cloud.ENI) bool {
	return e.Attachment != nil && e.Attachment.DeviceIndex == 0 && e.Attachment.NetworkCard == 0
}

// unmanaged tells whether someone asked Berth to keep off.
func unmanaged(e cloud.ENI) bool {
	v, ok := e.Tags[TagUnmanaged]
	return ok && !strings.EqualFold(v, "false")
}

// ours tells whether Berth may change an ENI: an ordinary one on the first
// network card that is the primary, or carries this cluster's tag and Berth's.
// A detached one, which could be deleted, has a description of Berth's too. EFA
// and trunk interfaces, those that others made, and unmanaged ones are seen only.
func ours(e cloud.ENI, cluster string) bool {
	if unmanaged(e) || e.Type != "" && e.Type != cloud.InterfaceOrdinary {
		return false
	}
	if e.Attachment != nil && e.Attachment.NetworkCard != 0 {
		return false
	}
	if e.Attachment == nil && !strings.HasPrefix(e.Description, descriptionStart) {
		return false
	}
	return primary(e) || cluster != "" && e.Tags[TagCluster] == cluster && e.Tags[TagOwner] == Owner
}

// creationTags are what a new ENI carries from its first moment.
func (c *Config) creationTags(now time.Time) map[string]string {
	tags := maps.Clone(c.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[TagCluster] = c.Cluster
	tags[TagInstanceID] = c.InstanceID
	tags[TagOwner] = Owner
	tags[TagCreatedAt] = now.UTC().Format(time.RFC3339)
	return tags
}

// createdAt is when Berth made an ENI, zero when nobody knows.
func createdAt(e cloud.ENI) time.Time {
	if !e.CreatedAt.IsZero() {
		return e.CreatedAt
	}
	t, err := time.Parse(time.RFC3339, e.Tags[TagCreatedAt])
	if err != nil {
		return time.Time{}
	}
	return t
}
