package ec2api

import (
	"net/netip"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

func describeInstances(r *request) (any, error) {
	r.text("IncludeManagedResources")
	n, view := r.names(), r.cloud.Described()
	from := source[vpc.Instance]{"i", func(i *vpc.Instance) string { return i.ID }, view.Instances, view.Instance}
	list, next, err := describe(r, "InstanceId", 1000, from, n.instanceFiltering(view.InstanceENIs, r.cloud.IMDS.V1()))
	return struct {
		Reservations []reservationXML `xml:"reservationSet>item"`
		Next         string           `xml:"nextToken,omitempty"`
	}{n.reservations(list, view.InstanceENIs, r.cloud.IMDS.V1()), next}, err
}

// runInstances launches instances. The lab ignores the image and decides itself what runs on them.
func runInstances(r *request) (any, error) {
	q := vpc.LaunchRequest{
		ImageID: r.need("ImageId"), Type: r.text("InstanceType"), ClientToken: r.clientToken(),
		Role: r.text("IamInstanceProfile.Name"), Requester: r.call.Principal.ARN,
	}
	if arn := r.text("IamInstanceProfile.Arn"); arn != "" {
		q.Role = arn[strings.LastIndex(arn, "/")+1:]
	}
	least, most := r.number1("MinCount"), r.number1("MaxCount")
	if least > most {
		r.fail(vpc.Errorf("InvalidParameterCombination", "MinCount exceeds MaxCount"))
	}
	q.Count = most
	at := ""
	if r.has("NetworkInterface") {
		at = "NetworkInterface.1."
		if d := r.text(at + "DeviceIndex"); d != "0" {
			r.invalid(at+"DeviceIndex", d)
		}
	}
	q.SubnetID, q.Groups = r.need(at+"SubnetId"), r.list(at+"SecurityGroupId")
	q.Primary, q.Addresses = r.launchAddresses(at)
	if q.Primary.IsValid() && q.Count > 1 {
		r.fail(vpc.Errorf("InvalidParameterCombination", "A private IP address can be given for one instance only"))
	}
	tags := r.tagSpecification("instance", "network-interface", "volume")
	q.Tags, q.ENITags = tags["instance"], tags["network-interface"]
	if err := r.ready(); err != nil {
		return nil, err
	}
	list, err := r.cloud.Instances.Run(q)
	if err != nil {
		return nil, err
	}
	books := r.cloud.Snapshot()
	enis := func(id string) []*vpc.ENI {
		return each(books.InstanceENIs(id), func(e vpc.ENI) *vpc.ENI { return &e })
	}
	launched := each(list, func(i vpc.Instance) *vpc.Instance { return &i })
	return r.names().reservations(launched, enis, r.cloud.IMDS.V1())[0], nil
}

// launchAddresses reads addresses from the call or from its only interface.
func (r *request) launchAddresses(at string) (netip.Addr, vpc.AddressRequest) {
	if at != "" {
		return r.addresses(at)
	}
	q := vpc.AddressRequest{IPv6: r.addrs(r.nested("Ipv6Address", "Ipv6Address"), false)}
	q.IPv6Count, q.NoIPv6 = r.countOrNone("Ipv6AddressCount")
	return r.addr("PrivateIpAddress", true), q
}

// number1 reads a required count of at least 1.
func (r *request) number1(name string) int {
	r.need(name)
	n, given := r.number(name)
	if given && (n < 1 || n > 1000) {
		r.invalid(name, r.text(name))
	}
	return n
}

type changeXML struct {
	ID       string   `xml:"instanceId"`
	Current  stateXML `xml:"currentState"`
	Previous stateXML `xml:"previousState"`
}

func transition(r *request, f func(...string) ([]vpc.StateChange, error)) (any, error) {
	ids := r.list("InstanceId")
	if len(ids) == 0 {
		r.fail(vpc.Errorf("MissingParameter", "The request must contain the parameter InstanceId"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	changes, err := f(ids...)
	return struct {
		Instances []changeXML `xml:"instancesSet>item"`
	}{each(changes, func(c vpc.StateChange) changeXML {
		return changeXML{c.InstanceID, state(c.Current), state(c.Previous)}
	})}, err
}

func terminateInstances(r *request) (any, error) {
	r.text("Force")
	r.text("SkipOsShutdown")
	return transition(r, r.cloud.Instances.TerminateAll)
}

func stopInstances(r *request) (any, error) {
	r.text("Force")
	r.text("SkipOsShutdown")
	return transition(r, r.cloud.Instances.StopAll)
}

func startInstances(r *request) (any, error) { return transition(r, r.cloud.Instances.StartAll) }

type cardXML struct {
	Index       int    `xml:"networkCardIndex"`
	Performance string `xml:"networkPerformance"`
	MaxENIs     int    `xml:"maximumNetworkInterfaces"`
}

type typeXML struct {
	Type       string    `xml:"instanceType"`
	Current    bool      `xml:"currentGeneration"`
	BareMetal  bool      `xml:"bareMetal"`
	Hypervisor string    `xml:"hypervisor,omitempty"`
	MaxENIs    int       `xml:"networkInfo>maximumNetworkInterfaces"`
	MaxCards   int       `xml:"networkInfo>maximumNetworkCards"`
	Default    int       `xml:"networkInfo>defaultNetworkCardIndex"`
	Cards      []cardXML `xml:"networkInfo>networkCards>item"`
	IPv4       int       `xml:"networkInfo>ipv4AddressesPerInterface"`
	IPv6       int       `xml:"networkInfo>ipv6AddressesPerInterface"`
	HasIPv6    bool      `xml:"networkInfo>ipv6Supported"`
}

func describeInstanceTypes(r *request) (any, error) {
	ids, fs, p := r.list("InstanceType"), r.filters(), r.page("InstanceType", 100)
	if len(ids) > 100 {
		r.fail(vpc.Errorf("InvalidParameterValue", "The maximum number of instance types in a call is 100"))
	}
	if err := r.ready(); err != nil {
		return nil, err
	}
	var list []*limits.Entry
	if len(ids) == 0 {
		for e := range limits.All() {
			list = append(list, &e)
		}
	}
	var unknown []string
	for _, id := range ids {
		if e, ok := limits.Find(id); ok {
			list = append(list, &e)
		} else {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) > 0 {
		return nil, vpc.Errorf("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", strings.Join(unknown, ", "))
	}
	list, err := apply(list, fs, filtering(typeFilters, typeInfo, nil))
	if err != nil {
		return nil, err
	}
	if p.size == 0 && len(ids) == 0 {
		p.size = 100
	}
	list, next := cut(r, p, list, func(e *limits.Entry) string { return e.Type })
	return struct {
		Types []typeXML `xml:"instanceTypeSet>item"`
		Next  string    `xml:"nextToken,omitempty"`
	}{each(list, typeInfo), next}, nil
}

func typeInfo(e *limits.Entry) typeXML {
	x := typeXML{
		Type: e.Type, Current: e.Prefixes, BareMetal: e.Hypervisor == limits.BareMetal, Hypervisor: e.Hypervisor,
		MaxENIs: e.MaxENIs * e.NetworkCards, MaxCards: e.NetworkCards, IPv4: e.IPv4PerENI, IPv6: e.IPv6PerENI, HasIPv6: e.IPv6PerENI > 0,
	}
	if x.BareMetal {
		x.Hypervisor = ""
	}
	for i := range e.NetworkCards {
		x.Cards = append(x.Cards, cardXML{i, "lab", e.MaxENIs})
	}
	return x
}
