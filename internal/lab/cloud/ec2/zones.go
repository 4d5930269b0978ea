package ec2

import (
	"slices"

	"github.com/berthnet/berth/internal/lab/cloud/vpc"
)

// zoneXML is one availability zone.
type zoneXML struct {
	Name    string `xml:"zoneName"`
	ID      string `xml:"zoneId"`
	State   string `xml:"zoneState"`
	Region  string `xml:"regionName"`
	Group   string `xml:"groupName"`
	Border  string `xml:"networkBorderGroup"`
	Type    string `xml:"zoneType"`
	OptedIn string `xml:"optInStatus"`
}

func describeZones(r *request) (any, error) {
	wanted, ids, fs := r.list("ZoneName"), r.list("ZoneId"), r.filters()
	_, _ = r.truth("AllAvailabilityZones") // there are no others
	if err := r.ready(); err != nil {
		return nil, err
	}
	zoneIDs := r.cloud.ZoneIDs()
	all := each(r.cloud.Zones(), func(z string) *zoneXML {
		return &zoneXML{z, zoneIDs[z], "available", r.cloud.Region(), r.cloud.Region(), r.cloud.Region(), "availability-zone", "opt-in-not-required"}
	})
	for _, w := range append(wanted, ids...) {
		if !slices.ContainsFunc(all, func(z *zoneXML) bool { return z.Name == w || z.ID == w }) {
			return nil, vpc.Errorf("InvalidParameterValue", "Invalid availability zone: [%s]", w)
		}
	}
	all = slices.DeleteFunc(all, func(z *zoneXML) bool {
		return len(wanted) > 0 && !slices.Contains(wanted, z.Name) || len(ids) > 0 && !slices.Contains(ids, z.ID)
	})
	list, err := apply(all, fs, zoneFilters().find)
	return struct {
		Zones []*zoneXML `xml:"availabilityZoneInfo>item"`
	}{list}, err
}

// zoneFilters are the filters of DescribeAvailabilityZones.
func zoneFilters() filterTable[zoneXML] {
	t := filterTable[zoneXML]{
		"group-name":    text(func(z *zoneXML) string { return z.Group }),
		"opt-in-status": text(func(z *zoneXML) string { return z.OptedIn }),
		"region-name":   text(func(z *zoneXML) string { return z.Region }),
		"state":         text(func(z *zoneXML) string { return z.State }),
		"zone-id":       text(func(z *zoneXML) string { return z.ID }),
		"zone-name":     text(func(z *zoneXML) string { return z.Name }),
		"zone-type":     text(func(z *zoneXML) string { return z.Type }),
	}
	return t.absent("group-long-name", "message", "parent-zone-id", "parent-zone-name")
}
