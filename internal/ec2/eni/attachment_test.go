package eni

import (
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// at is an ENI that is attached to the node at a device index.
func at(e cloud.ENI, index int, id string) cloud.ENI {
	e.Attachment = &cloud.Attachment{ID: id, InstanceID: "i-1", DeviceIndex: index, Status: "attached"}
	return e
}

// A device index, like a MAC address, is one ENI's: that which had it.
func TestDeviceIndexesThatTwoHave(t *testing.T) {
	one, two, three := at(eniOf(1, "10.0.0.4"), 0, "a-1"), at(eniOf(2, "10.0.0.5"), 1, "a-2"), at(eniOf(3, "10.0.0.6"), 2, "a-3")
	card := three
	card.Attachment = &cloud.Attachment{ID: "a-3", InstanceID: "i-1", DeviceIndex: 1, NetworkCard: 1, Status: "attached"}
	leaving := at(three, 1, "a-3")
	leaving.Attachment.Status = "detaching"
	for _, tt := range []struct {
		name    string
		listed  []cloud.ENI
		double  string
		primary string
	}{
		{"each its own", []cloud.ENI{one, two, three}, "", "eni-1"},
		{"another at that of the second", []cloud.ENI{one, two, at(three, 1, "a-3")}, "eni-3", "eni-1"},
		{"the second at that of the third", []cloud.ENI{one, at(two, 2, "a-2"), three}, "eni-2", "eni-1"},
		{"another at that of the primary", []cloud.ENI{one, two, at(three, 0, "a-3")}, "eni-3", "eni-1"},
		{"of another network card", []cloud.ENI{one, two, card}, "", "eni-1"},
		{"one that leaves", []cloud.ENI{one, two, leaving}, "", "eni-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 20 { // maps have no order
				v := newView(0, 0)
				v.observed(0, one, two, three)
				v.observed(1, tt.listed...)
				for id, k := range v.enis {
					if k.ambiguous != (id == tt.double) {
						t.Errorf("%s is double: %v", id, k.ambiguous)
					}
				}
				if k, ok := v.primary(); !ok || k.ID != tt.primary {
					t.Fatalf("the primary is %v, want %s", k, tt.primary)
				}
			}
		})
	}
}

// What is detached is what a listing says is attached: a reply may name
// another's attachment.
func TestAttachmentsThatRepliesName(t *testing.T) {
	listed := at(eniOf(2, "10.0.0.5"), 1, "a-2")
	for _, tt := range []struct {
		name   string
		reply  cloud.ENI
		listed cloud.ENI
		want   string
	}{
		{"as listed", listed, listed, "a-2"},
		{"another's", at(listed, 1, "a-of-another-node"), listed, "a-2"},
		{"one that the listing does not have yet", at(listed, 1, "a-2"), eniOf(2, "10.0.0.5"), "a-2"},
		{"another index, as of before", at(listed, 1, "a-2"), at(listed, 3, "a-old"), "a-2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(time.Minute, 0)
			k := newKnown(factsOf(tt.reply, "test"))
			k.replied = unix(1)
			v.enis[k.ID] = k
			v.observed(2, tt.listed)
			if got := v.enis["eni-2"].Attachment; got == nil || got.ID != tt.want || got.DeviceIndex != 1 {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}

// What is on another instance, or was made for one, is not this node's.
func TestENIsOfOtherInstances(t *testing.T) {
	mine, others, adopted := eniOf(1, "10.0.0.4"), eniOf(2, "10.0.0.5"), at(eniOf(3, "10.0.0.6"), 1, "a-3")
	mine.Tags = map[string]string{TagInstanceID: "i-1"}
	others.Tags = map[string]string{TagInstanceID: "i-2"}
	adopted.Tags = map[string]string{TagInstanceID: "i-2"}
	away := at(eniOf(4, "10.0.0.7"), 1, "a-4")
	away.Attachment.InstanceID = "i-2"
	o := &observer{cfg: &Config{InstanceID: "i-1"}}
	var got []string
	for _, e := range o.ofInstance([]cloud.ENI{mine, others, adopted, away, eniOf(5, "10.0.0.8")}) {
		got = append(got, e.ID)
	}
	if want := []string{"eni-1", "eni-3", "eni-5"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
