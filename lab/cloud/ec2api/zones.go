package ec2api

import (
	"slices"

	"github.com/berthnet/berth/lab/cloud/vpc"
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
	list, err := apply(all, fs, filtering(zoneFilters, func(z *zoneXML) *zoneXML { return z }, nil))
	return struct {
		Zones []*zoneXML `xml:"availabilityZoneInfo>item"`
	}{list}, err
}
